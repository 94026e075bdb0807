#include "round.h"

#include <algorithm>
#include <chrono>

#include "sampling.h"
#include "thread_pool.h"

namespace sk {

std::string grow(TreeDrafter* drafter, sk_growing& growing) {
    if (drafter) return drafter->grow(growing);
    grow_from_text(growing);
    return "";
}

std::string Round::run(Decoder& decoder, TreeDrafter* drafter, sk_round& round) {
    const auto started = std::chrono::steady_clock::now();
    std::string wrong = round.growing ? grow(drafter, round) : "";
    round.growing_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    sk_rows& all = round.rows;
    if (wrong.empty()) wrong = drafting_fault(all);
    if (!wrong.empty()) return wrong;
    places_.clear();
    for (int64_t r = 0; r < all.count; r++) place(all.rows[r], all.most);
    const int64_t nodes = int64_t(places_.ids.size());
    float* logits = logits_.reserve(nodes * all.vocabulary);
    int32_t* best = all.best_count ? best_.reserve(nodes * all.best_count) : nullptr;
    sk_batch batch = places_.batch(logits, best, all.best_count, all.threads);
    batch.tap_count = round.tap_count;
    batch.taps = round.taps;
    batch.tapped = round.tapped = tapped_.reserve(nodes * round.tap_count * decoder.model().hidden);
    wrong = decoder.fault(batch);
    if (!wrong.empty()) return wrong;
    {
        ThreadPool& pool = ThreadPool::instance();
        std::lock_guard<std::mutex> lock(pool.mutex);
        decoder.pass(batch);
        pool.fetch_next();
    }
    for (int64_t r = 0; r < all.count; r++) {
        sk_row& row = all.rows[r];
        row.logits = logits;
        row.best = best;
        logits += (row.count + 1) * all.vocabulary;
        if (best) best += (row.count + 1) * all.best_count;
    }
    judge(all);
    return "";
}

std::string Round::grow(TreeDrafter* drafter, sk_round& round) {
    sk_growing& growing = *round.growing;
    if (growing.row_count != round.rows.count) return "drafts that grow need a tree for each row";
    if (growing.longest != round.rows.most) return "drafts that grow need as much room as other drafts";
    std::string wrong = sk::grow(drafter, growing);
    round.steps = growing.steps;
    for (int64_t i = 0; wrong.empty() && i < growing.row_count; i++) {
        if (growing.rows[i].given) continue;
        round.rows.rows[i].count = growing.rows[i].count;
        round.rows.rows[i].q = growing.rows[i].from_text ? nullptr : growing.rows[i].q;
    }
    return wrong;
}

// The nodes of a row. Ancestors in the columns right after the text belong to the prefix.
void Round::place(const sk_row& row, int64_t most) {
    places_.add(row.last_token, row.slot, row.start, row.start, row.start);
    places_.judge();
    const int64_t *tokens = row.drafted, *parents = tokens + most;
    for (int32_t node = 1; node <= row.count; node++) {
        path_.clear();
        for (int64_t before = parents[node - 1]; before; before = parents[before - 1]) path_.push_back(int32_t(before));
        path_.push_back(0);
        std::reverse(path_.begin(), path_.end());
        int32_t leading = 0;
        while (leading < int32_t(path_.size()) && path_[size_t(leading)] == leading) leading++;
        for (size_t i = size_t(leading); i < path_.size(); i++) places_.ancestors.push_back(row.start + path_[i]);
        places_.add(tokens[node - 1], row.slot, row.start + int32_t(path_.size()), row.start + node, row.start + leading);
        places_.judge();
    }
}

}  // namespace sk
