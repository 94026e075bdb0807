#include "block.h"

#include <algorithm>
#include <cmath>

#include "packing.h"
#include "pieces.h"

namespace sk {

Block::Block(const sk_block_model& model)
    : StateDrafter(model.layers, model.fuse, model.tap_count, {model.bias}), model_(model), expected_(positions()) {}

void Block::attach(const sk_tables& tables, float*, const sk_cache* caches) {
    tables_ = tables;
    layers_.attach(tables, caches);
    blocks_.assign(size_t(tables.slots), 0);
}

void Block::enter_fuse(const float* tapped, float* out) const {
    std::copy(tapped, tapped + tap_count_ * layers_.model().hidden, out);
}

// As keys and values of all layers.
void Block::store(float* fused, const Places& tokens) {
    const int64_t hidden = layers_.model().hidden;
    sk_batch batch = tokens.batch(nullptr, nullptr, 0, pool_.threads());
    for (int64_t t = 0; t < batch.tokens; t++)
        kernels_->norm(fused + t * hidden, model_.fuse_norm, layers_.model().epsilon, hidden, fused + t * hidden);
    batch.entered = fused;
    layers_.write_keys(batch);
}

std::string Block::prepare(const sk_growing& growing) {
    known_ = growing.known;
    return StateDrafter::prepare(growing);
}

// Scores after the last tokens of rows, whose source is -1, or after drafted tokens.
std::string Block::score(const sk_head_step& step) {
    const sk_batch& batch = step.batch;
    if (step.sources[batch.judged[0]] < 0) {
        std::string wrong = pass(batch);
        if (!wrong.empty()) return wrong;
    }
    std::vector<int64_t> tokens, rows;
    int64_t deepest = 0;
    for (int64_t j = 0; j < batch.judged_count; j++) {
        const int32_t t = batch.judged[j];
        const int64_t position = step.sources[t] < 0 ? 0 : batch.positions[t] - batch.prefixes[t] + 1;
        tokens.push_back(batch.ids[t]);
        rows.push_back(blocks_[size_t(batch.slots[t])] * positions() + position);
        deepest = std::max(deepest, position);
    }
    if (deepest >= scored_) {
        const int64_t first = scored_;
        const sk_batch rest = this->rows(first, positions());
        layers_.judge(rest);
        note_scores(rest, first, positions());
    }
    deepest_ = std::max(deepest_, deepest);
    find_biases(tokens);
    chances_.clear();
    const int64_t size = layers_.model().vocabulary;
    float* logits = batch.logits;
    for (size_t j = 0; j < tokens.size(); j++, logits += size) {
        const float* plain = logits_[size_t(rows[j])];
        if (!model_.bias.rows) {
            std::copy(plain, plain + size, logits);
        } else {
            const float* bias = biases_.at(tokens[j]);
            for (int64_t i = 0; i < size; i++) logits[i] = plain[i] + bias[i];
        }
        if (model_.confidence) chances_.push_back(confidence(rows[j], tokens[j]));
    }
    return "";
}

// The network over a block for each judged token. As many positions are scored as drafts had before; rarely one needs more,
// for which the output layer is read again.
std::string Block::pass(const sk_batch& lasts) {
    block_.clear();
    count_ = lasts.judged_count;
    for (int64_t b = 0; b < count_; b++) {
        const int32_t t = lasts.judged[b], slot = lasts.slots[t], first = lasts.positions[t] + 1;
        blocks_[size_t(slot)] = b;
        for (int32_t i = 0; i < model_.size; i++)
            block_.add(i ? model_.mask : lasts.ids[t], slot, first + i, first + i, first + i);
    }
    expected_ = std::min(positions(), std::max(deepest_ + 1, expected_ - 1));
    deepest_ = 0;
    logits_.assign(size_t(count_ * positions()), nullptr);
    confidences_.assign(logits_.size(), 0.0);
    const sk_batch batch = rows(0, expected_);
    std::string wrong = layers_.fault(batch);
    if (!wrong.empty()) return wrong;
    layers_.pass(batch);
    will_fetch();
    note_scores(batch, 0, expected_);
    biases_.clear();
    bias_passes_ = 0;
    find_biases(likely_tokens());
    return "";
}

// The blocks, of which positions `first` to `last` - 1 are scored.
sk_batch Block::rows(int64_t first, int64_t last) {
    block_.judged.clear();
    for (int64_t b = 0; b < count_; b++)
        for (int64_t p = first; p < last; p++) block_.judged.push_back(int32_t(b * model_.size + model_.first + p));
    Buffer<float>& logits = first ? later_logits_ : first_logits_;
    return block_.batch(logits.reserve(int64_t(block_.judged.size()) * layers_.model().vocabulary), nullptr, 0,
                        pool_.threads());
}

void Block::note_scores(const sk_batch& batch, int64_t first, int64_t last) {
    for (int64_t j = 0; j < batch.judged_count; j++) {
        const size_t row = size_t(j / (last - first) * positions() + first + j % (last - first));
        logits_[row] = batch.logits + j * layers_.model().vocabulary;
        for (int64_t i = 0; model_.confidence && i < layers_.model().hidden; i++)
            confidences_[row] += double(model_.confidence[i]) * layers_.judged(j)[i];
    }
    scored_ = last;
}

// The likeliest token of every position that another one follows. Which tokens a draft has is known only token by token, but
// the weights of the biases are read once for as many as can be guessed.
std::vector<int64_t> Block::likely_tokens() {
    if (!model_.bias.rows) return {};
    const int64_t size = layers_.model().vocabulary;
    std::vector<int32_t> places(logits_.size(), -1);
    auto piece = [&](int64_t row, int) {
        std::vector<float> scratch(size_t(size / kBestBlock + 1));
        if (row % positions() + 1 < scored_)
            kernels_->best(logits_[size_t(row)], size, 1, scratch.data(), &places[size_t(row)], nullptr);
    };
    pool_.each(int64_t(places.size()), piece);
    std::vector<int64_t> tokens;
    for (int32_t place : places)
        if (place >= 0) tokens.push_back(known_ ? known_[place] : place);
    return tokens;
}

// Computes the biases after tokens that it has not computed since the last block.
void Block::find_biases(std::vector<int64_t> tokens) {
    if (!model_.bias.rows) return;
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    const auto known = [&](int64_t token) { return biases_.count(token) > 0; };
    tokens.erase(std::remove_if(tokens.begin(), tokens.end(), known), tokens.end());
    if (tokens.empty()) return;
    const int64_t count = int64_t(tokens.size()), size = layers_.model().vocabulary;
    previous_.reserve(count, model_.previous.columns);
    for (int64_t i = 0; i < count; i++) {
        unpack_row(model_.previous, tokens[size_t(i)], previous_.token(i));
        if (is_quantized(model_.bias.format)) previous_.quantize(*kernels_, i);
    }
    if (bias_memory_.size() == bias_passes_) bias_memory_.emplace_back();
    float* out = bias_memory_[bias_passes_++].reserve(count * size);
    const Inputs inputs = previous_.inputs();
    each_panels(pool_, panels(size), [&](int64_t first, int64_t last, int) {
        kernels_->linear(model_.bias, inputs, first, last, 0, count, nullptr, false, out + first * kPanel, size);
    });
    for (int64_t i = 0; i < count; i++) biases_[tokens[size_t(i)]] = out + i * size;
}

// Probability that the likeliest token of a row is accepted, from the token before it.
float Block::confidence(int64_t row, int64_t token) const {
    double sum = model_.confidence_bias + confidences_[size_t(row)];
    if (model_.confidence_previous) {
        std::vector<float> previous(size_t(model_.previous.columns));
        unpack_row(model_.previous, token, previous.data());
        for (size_t i = 0; i < previous.size(); i++) sum += double(model_.confidence_previous[i]) * previous[i];
    }
    return float(1 / (1 + std::exp(-sum)));
}

void Block::correct(int64_t branches, float* shares) {
    for (size_t j = 0; j < chances_.size(); j++) shares[int64_t(j) * branches] = chances_[j];
}

}  // namespace sk
