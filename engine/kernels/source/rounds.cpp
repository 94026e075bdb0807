#include "rounds.h"

#include <algorithm>
#include <chrono>

#include "penalties.h"

namespace sk {

std::string Rounds::run(sk_round* rounds, int64_t count, int64_t& ran) {
    for (ran = 0; ran < count; ran++) {
        const auto started = std::chrono::steady_clock::now();
        std::string wrong = ran ? prepare(rounds[ran], rounds[ran - 1]) : "";
        if (wrong.empty()) wrong = round_.run(decoder_, drafter_, rounds[ran]);
        if (!wrong.empty()) return wrong;
        rounds[ran].seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
        if (is_last(rounds[ran])) {
            ran++;
            break;
        }
    }
    return "";
}

// Whether the caller has to see the round before there can be another one; sets what it emitted.
bool Rounds::is_last(const sk_round& round) {
    emitted_.resize(size_t(round.rows.count));
    bool last = false;
    for (int64_t r = 0; r < round.rows.count; r++) {
        const sk_row& row = round.rows.rows[r];
        if (row.held || row.last < 0) return true;
        std::vector<int64_t>& tokens = emitted_[size_t(r)];
        tokens.clear();
        for (int32_t i = 0; i < row.accepted; i++) tokens.push_back(row.drafted[row.path[i] - 1]);
        tokens.push_back(row.last);
        // A draft needs room for one token and the one after it.
        last |= int64_t(tokens.size()) + 1 >= row.left;
        for (int64_t token : tokens) last |= std::find(ends_.begin(), ends_.end(), token) != ends_.end();
    }
    return last;
}

// The rows of the next round, and what it reads, after the round before.
std::string Rounds::prepare(sk_round& next, const sk_round& before) {
    sk_row* rows = next.rows.rows;
    next.rows = before.rows;
    next.rows.rows = rows;
    next.growing = before.growing;
    next.tap_count = before.tap_count;
    next.taps = before.taps;
    std::string wrong = drafter_ ? drafter_->follow(before, emitted_) : "";
    for (int64_t r = 0; wrong.empty() && r < before.rows.count; r++) {
        const sk_row& from = before.rows.rows[r];
        const std::vector<int64_t>& tokens = emitted_[size_t(r)];
        const int32_t added = int32_t(tokens.size());
        wrong = keep(from);
        sk_row to = from;
        to.drafted = rows[r].drafted;
        to.path = rows[r].path;
        to.p = rows[r].p;
        to.q_of = rows[r].q_of;
        to.beta = rows[r].beta;
        to.start += added;
        to.left -= added;
        to.last_token = from.last;
        to.count = 0;
        to.q = nullptr;
        to.number++;
        rows[r] = to;
        if (to.penalties) extend(*to.penalties, tokens);
        if (!next.growing) continue;
        sk_growth& growth = next.growing->rows[r];
        growth.ids = tokens.data() + (growth.begin - growth.end);
        growth.end += added;
        if (growth.text) {
            std::copy(tokens.begin(), tokens.end(), growth.text + growth.text_count);
            growth.text_count += added;
            growth.ids = growth.text + growth.begin + next.growing->first;
        }
        growth.depth = std::min(growth.depth, to.left - 1);
        growth.room = std::min(growth.room, to.left - 1);
        growth.number++;
        growth.drafted = to.drafted;
        if (growth.penalties && growth.penalties != to.penalties) extend(*growth.penalties, tokens);
    }
    if (next.growing) next.growing->read_count = 0;
    return wrong;
}

// Moves the columns of accepted tokens to the columns after the row's last token.
std::string Rounds::keep(const sk_row& row) {
    if (!row.accepted || row.path[row.accepted - 1] == row.accepted) return "";
    std::vector<int32_t> sources;
    for (int32_t i = 0; i < row.accepted; i++) sources.push_back(row.start + row.path[i]);
    return decoder_.move(row.slot, sources.data(), row.accepted, row.start + 1);
}

}  // namespace sk
