// What a batch asks of the decoder: whether it can be run, and how its work is divided.
#include <algorithm>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

// Passes over more tokens have pieces enough without dividing the keys of a token.
constexpr int64_t kMostSplitTokens = 64;

}  // namespace

std::string Decoder::fault(const sk_batch& batch) const {
    const auto at = [](const char* what, int64_t token) { return what + std::string(" of token ") + std::to_string(token); };
    if (keys_.empty()) return "there is no cache: attach one first";
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

// Rows, pieces of attention, and room for everything.
void Decoder::plan(const sk_batch& batch) {
    rows_.clear();
    pieces_.clear();
    split_pieces_.clear();
    most_blocks_ = most_own_ = 0;
    for (int64_t t = 0; t < tokens_; t++) {
        const int32_t column = batch.columns[t];
        if (t == 0 || batch.slots[t] != batch.slots[t - 1]) rows_.push_back({t, 0, 0, column, column});
        Row& row = rows_.back();
        row.count++;
        row.own_first = std::min(row.own_first, column);
        row.own_last = std::max(row.own_last, column);
        for (int32_t i = batch.ancestor_offsets[t]; i < batch.ancestor_offsets[t + 1]; i++)
            row.own_first = std::min(row.own_first, batch.ancestors[i]);
        row.blocks = std::max(row.blocks, batch.positions[t] / kKeyBlock + 1);
        most_blocks_ = std::max(most_blocks_, row.blocks);
        most_own_ = std::max<int64_t>(most_own_, row.own_last - row.own_first + 1);
    }
    const bool may_split = most_blocks_ > 1 && tokens_ <= kMostSplitTokens;
    for (size_t r = 0; r < rows_.size(); r++)
        for (int64_t t = 0; t < rows_[r].count; t += kAttentionTokens) {
            const int64_t count = std::min(kAttentionTokens, rows_[r].count - t), first = rows_[r].first + t;
            int64_t last = 0;
            for (int64_t i = first; i < first + count; i++) last = std::max(last, batch.positions[i] / kKeyBlock + 1);
            pieces_.push_back({int64_t(r), first, count, 0, last});
            for (int64_t b = 0; may_split && b < most_blocks_; b++)
                split_pieces_.push_back({int64_t(r), first, count, b, b + 1});
        }

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
    judged_.reserve(std::max<int64_t>(batch.judged_count, 1), hidden);
    if (may_split) partial_.reserve(tokens_ * model_.heads * most_blocks_ * state_size(head_size_));
    while (int(scratch_.size()) < pool_.threads()) scratch_.emplace_back();
    const int64_t attention =
        attention_scratch(std::min(tokens_, kAttentionTokens), most_own_, shared_heads_, head_size_);
    const int64_t blocks = batch.best ? model_.vocabulary / kBestBlock + 1 : 0;
    for (Buffer<float>& scratch : scratch_) 
        scratch.reserve(
            std::max({attention, 2 * kMlpTokens * kGroup, blocks, model_.delta_key_size * kDeltaColumns}));
}

}  // namespace sk
