#include "draft_model.h"

#include <algorithm>

namespace sk {

namespace {

// Columns, after the text, of the first of these tokens that follow each other in what was read of a row's tree.
std::vector<int32_t> columns_along(const sk_growth& row, int64_t longest, const std::vector<int64_t>& tokens) {
    std::vector<int32_t> found;
    const int64_t *read = row.expanded, *parents = read + longest;
    for (int64_t token : tokens) {
        const int32_t before = found.empty() ? 0 : found.back();
        int32_t column = 1;
        while (column <= row.expanded_count && (read[column - 1] != token || parents[column - 1] != before)) column++;
        if (column > row.expanded_count) break;
        found.push_back(column);
    }
    return found;
}

}  // namespace

std::string DraftModel::score(const sk_head_step& step) {
    std::string wrong = decoder_.fault(step.batch);
    if (wrong.empty()) decoder_.pass(step.batch);
    return wrong;
}

std::string DraftModel::follow(const sk_round& round, const std::vector<std::vector<int64_t>>& emitted) {
    std::string wrong;
    for (int64_t r = 0; round.growing && wrong.empty() && r < round.rows.count; r++) {
        sk_growth& row = round.growing->rows[r];
        if (row.begin != row.end) continue;
        std::vector<int32_t> columns = columns_along(row, round.growing->longest, emitted[size_t(r)]);
        // The last token is scored in the next step even where it has been read.
        columns.resize(std::min(columns.size(), emitted[size_t(r)].size() - 1));
        row.begin = row.end + int32_t(columns.size());
        for (int32_t& column : columns) column += row.end - 1;
        if (!columns.empty() && columns.back() >= row.begin)
            wrong = decoder_.move(row.slot, columns.data(), int64_t(columns.size()), row.end);
    }
    return wrong;
}

}  // namespace sk
