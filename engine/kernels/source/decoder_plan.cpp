// What a batch asks of the decoder: whether it can be run, and how its work is divided.
#include <algorithm>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

// States of a query head for all tokens: more would take much memory.
constexpr int64_t kMostStates = 4096;
// Blocks of the cache with a block of keys.
constexpr int64_t kParts = kKeyBlock / kCacheBlock;
// Queries whose attention is computed together, by most instruction sets.
constexpr int64_t kQueries = 8;

}  // namespace

std::string Decoder::fault(const sk_batch& batch) const {
    const auto at = [](const char* what, int64_t token) { return what + std::string(" of token ") + std::to_string(token); };
    if (caches_.empty()) return "there is no cache: attach one first";
    const int32_t columns = tables_.width * int32_t(kCacheBlock);
    std::vector<bool> seen(size_t(tables_.slots), false);
    for (int64_t t = 0; t < batch.tokens; t++) {
        const int32_t position = batch.positions[t], slot = batch.slots[t];
        const int32_t from = batch.ancestor_offsets[t], to = batch.ancestor_offsets[t + 1];
        if (batch.ids[t] < 0 || batch.ids[t] >= model_.embedding.rows ||
            (model_.inputs && batch.ids[t] >= model_.inputs_embedding.rows))
            return at("the id", t) + " is not in the vocabulary";
        if (slot < 0 || slot >= tables_.slots) return at("the slot", t) + " is not in the cache";
        if (batch.columns[t] < 0 || batch.columns[t] >= columns) return at("the column", t) + " is not in the cache";
        if (batch.prefixes[t] < 0 || batch.prefixes[t] > columns) return at("the prefix", t) + " is not in the cache";
        if (!rings_.empty() && (to > from || position != batch.columns[t] ||
                                (t > 0 && slot == batch.slots[t - 1] && position != batch.positions[t - 1] + 1)))
            return at("the position", t) + " does not follow the one before, as recurrent layers need it";
        if (to < from || position != batch.prefixes[t] + (to - from))
            return at("the position", t) + " is not its prefix and its ancestors";
        for (const sk_rope& rope : ropes_)
            if (position >= rope.positions) return at("the position", t) + " is beyond the rotary table";
        if (t == 0 || slot != batch.slots[t - 1]) {
            if (lengths_ && (lengths_[slot] > position || commits_[slot] < lengths_[slot]))
                return "the state of slot " + std::to_string(slot) + " at position " + std::to_string(position) + " is lost";
            if (seen[size_t(slot)]) return "the tokens of slot " + std::to_string(slot) + " are not next to each other";
            seen[size_t(slot)] = true;
        }
        for (int32_t i = from; i < to; i++) {
            const int32_t column = batch.ancestors[i];
            if (column < batch.prefixes[t] || column >= batch.columns[t])
                return at("an ancestor", t) + " does not come before it";
        }
    }
    for (int64_t i = 0; i < batch.judged_count; i++)
        if (batch.judged[i] < 0 || batch.judged[i] >= batch.tokens) return "a judged token is not in the pass";
    for (int64_t i = 0; i < batch.tap_count; i++)
        if (batch.taps[i] < 0 || batch.taps[i] > model_.layer_count) return "a tapped depth is not in the model";
    return "";
}

// Rows of tokens, and what they write to.
void Decoder::plan_rows(const sk_batch& batch) {
    rows_.clear();
    runs_.clear();
    placed_.resize(size_t(tokens_));
    most_own_ = 0;
    for (int64_t t = 0; t < tokens_; t++) {
        const int32_t column = batch.columns[t], slot = batch.slots[t];
        const bool begins = t == 0 || slot != batch.slots[t - 1];
        if (begins) rows_.push_back({t, 0, column, column, tables_.blocks + int64_t(slot) * tables_.width, 0, INT64_MAX, 0, 0});
        Row& row = rows_.back();
        row.count++;
        row.own_first = std::min(row.own_first, column);
        row.own_last = std::max(row.own_last, column);
        int32_t placed = batch.prefixes[t];
        for (int32_t i = batch.ancestor_offsets[t]; placed < batch.positions[t] && batch.ancestors[i] == placed; i++) placed++;
        placed_[size_t(t)] = placed += placed == batch.positions[t] && placed == column;
        for (int32_t i = batch.ancestor_offsets[t]; i < batch.ancestor_offsets[t + 1]; i++)
            row.own_first = std::min(row.own_first, batch.ancestors[i]);
        row.end = std::max<int64_t>(row.end, batch.positions[t] + 1);
        row.placed = std::min(row.placed, placed / kKeyBlock);
        most_own_ = std::max<int64_t>(most_own_, row.own_last - row.own_first + 1);
        const int64_t block = row.table[column / kCacheBlock];
        if (begins || block != runs_.back().block) runs_.push_back({t, 0, block});
        runs_.back().count++;
    }
    lasts_.assign(batch.positions, batch.positions + tokens_);
    ends_.resize(size_t(tokens_));
    for (const Row& row : rows_)
        for (int64_t t = row.first; t < row.first + row.count; t++) {
            if (sees_later_) lasts_[size_t(t)] = int32_t(row.end) - 1;
            ends_[size_t(t)] = lasts_[size_t(t)] + 1;
        }
}

// Whether a block of keys is in the same place for two rows, and no token sees another column in it.
bool Decoder::shares(const Row& a, const Row& b, int64_t block) const {
    const int64_t first = block * kParts, end = std::min<int64_t>(first + kParts, tables_.width);
    return share_ && block < std::min(a.placed, b.placed) && std::equal(a.table + first, a.table + end, b.table + first);
}

// Pieces of attention. What rows share is read once for all of them ("Cascade Inference", Ye et al. 2024).
void Decoder::plan_attention() {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
        return std::lexicographical_compare(a.table, a.table + a.placed * kParts, b.table, b.table + b.placed * kParts);
    });
    order_.clear();
    for (Row& row : rows_) {
        row.at = int64_t(order_.size());
        for (int64_t t = row.first; t < row.first + row.count; t++) order_.push_back(int32_t(t));
    }
    const auto divide_all = [&](bool share, bool split) {
        share_ = share;
        split_ = split;
        pieces_.clear();
        divide(0, rows_.size(), 0);
        most_states_ = 0;
        for (const Row& row : rows_) most_states_ = std::max(most_states_, row.blocks() - row.joined + 1);
        return tokens_ * most_states_ <= kMostStates;
    };
    if (!divide_all(true, false))
        divide_all(false, false);
    else if (int64_t(pieces_.size()) * key_heads_ < pieces_wanted() && !divide_all(true, true))
        divide_all(true, false);
    states_count_.resize(size_t(tokens_));
    for (const Row& row : rows_)
        for (int64_t t = row.first; t < row.first + row.count; t++)
            states_count_[size_t(t)] = int32_t(std::max<int64_t>(1, lasts_[size_t(t)] / kKeyBlock + 2 - row.joined));
}

// Pieces of attention for an even division. Pieces of one row take equally long, so that fewer are enough.
int64_t Decoder::pieces_wanted() const { return pool_.threads() * kPiecesPerThread / (rows_.size() == 1 ? 2 : 1); }

// The pieces of rows `first` to `last` - 1, which share the blocks before `block`, from there on.
void Decoder::divide(size_t first, size_t last, int64_t block) {
    for (size_t end; first < last; first = end) {
        const Row& row = rows_[first];
        for (end = first + 1; end < last && shares(row, rows_[end], block);) end++;
        // Few tokens over few blocks, or of one row, are divided so that all threads have a part of them.
        const bool few = tokens_ <= kFewTokens && (rows_.size() == 1 || row.blocks() < pool_.threads());
        const int64_t tile = std::max<int64_t>(1, kQueries * key_heads_ / model_.heads);
        const int64_t most = few ? std::clamp<int64_t>(tokens_ * key_heads_ / pieces_wanted(), 1, tile) : kAttentionTokens;
        int64_t to = end > first + 1 ? block : row.blocks();
        while (end > first + 1 && shares(row, rows_[end - 1], to)) to++;
        for (size_t r = first; r < end && block == 0; r++) rows_[r].joined = split_ ? 1 : to;
        const int64_t tokens = rows_[end - 1].at + rows_[end - 1].count, step = split_ ? 1 : to - block;
        for (int64_t i = row.at; i < tokens; i += most)
            for (int64_t b = block; b < to; b += step)
                pieces_.push_back({int64_t(first), i, std::min(most, tokens - i), b, b + step,
                                   b ? b + 1 - row.joined : 0});
        if (end > first + 1) divide(first, end, to);
    }
}

// How the pass is divided, and room for everything.
void Decoder::plan(const sk_batch& batch) {
    plan_rows(batch);
    plan_attention();
    const int64_t hidden = model_.hidden;
    states_.reserve(tokens_ * hidden);
    branch_.reserve(tokens_ * hidden + kPanel);
    queries_.reserve(tokens_ * query_width_);
    keys_new_.reserve(tokens_ * key_width_);
    values_new_.reserve(tokens_ * key_width_);
    gates_.reserve(tokens_ * gate_width_ + kPanel);
    inputs_.reserve(tokens_ * model_.layer_count * model_.inputs);
    normed_.reserve(tokens_, hidden);
    if (!rings_.empty()) plan_recurrent();
    partial_.reserve(tokens_ * model_.heads * most_states_ * state_size(head_size_));
    while (int(scratch_.size()) < pool_.threads()) scratch_.emplace_back();
    const int64_t attention = attention_scratch(most_own_, head_size_);
    const int64_t blocks = batch.best_count ? model_.vocabulary / kBestBlock + 1 : 0;
    for (Buffer<float>& scratch : scratch_)
        scratch.reserve(
            std::max({attention, 2 * kMlpTokens * kGroup, blocks, model_.delta_key_size * kDeltaColumns}));
}

}  // namespace sk
