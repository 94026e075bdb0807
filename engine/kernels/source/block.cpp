#include "block.h"

#include <algorithm>
#include <cmath>

#include "packing.h"
#include "pieces.h"

namespace sk {

Block::Block(const sk_block_model& model)
    : StateDrafter(model.layers, model.fuse, model.tap_count, {model.bias}), model_(model) {}

void Block::attach(const sk_tables& tables, float*, const sk_cache* caches) {
    tables_ = tables;
    layers_.attach(tables, caches);
    first_rows_.assign(size_t(tables.slots), 0);
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
    std::vector<int64_t> tokens;
    for (int64_t j = 0; j < batch.judged_count; j++) tokens.push_back(batch.ids[batch.judged[j]]);
    find_biases(tokens);
    confidences_.clear();
    const int64_t size = layers_.model().vocabulary;
    float* logits = batch.logits;
    for (int64_t j = 0; j < batch.judged_count; j++, logits += size) {
        const int32_t t = batch.judged[j];
        const int32_t position = step.sources[t] < 0 ? 0 : batch.positions[t] - batch.prefixes[t] + 1;
        const int64_t row = first_rows_[size_t(batch.slots[t])] + position;
        const float* base = base_.get() + row * size;
        if (!model_.bias.rows) {
            std::copy(base, base + size, logits);
        } else {
            const float* bias = biases_.at(tokens[size_t(j)]);
            for (int64_t i = 0; i < size; i++) logits[i] = base[i] + bias[i];
        }
        if (model_.confidence) confidences_.push_back(confidence(row, tokens[size_t(j)]));
    }
    return "";
}

// The network over a block for each judged token.
std::string Block::pass(const sk_batch& lasts) {
    Places block;
    for (int64_t j = 0; j < lasts.judged_count; j++) {
        const int32_t t = lasts.judged[j], slot = lasts.slots[t], first = lasts.positions[t] + 1;
        first_rows_[size_t(slot)] = int64_t(block.judged.size());
        for (int32_t i = 0; i < model_.size; i++) {
            block.add(i ? model_.mask : lasts.ids[t], slot, first + i, first + i, first + i);
            if (i >= model_.first) block.judge();
        }
    }
    rows_ = int64_t(block.judged.size());
    float* base = base_.reserve(rows_ * layers_.model().vocabulary);
    const sk_batch batch = block.batch(base, nullptr, 0, lasts.threads);
    std::string wrong = layers_.fault(batch);
    if (!wrong.empty()) return wrong;
    layers_.pass(batch);
    will_fetch();
    biases_.clear();
    bias_passes_ = 0;
    find_biases(likely_tokens());
    return "";
}

// The likeliest token of every position that another one follows. Which tokens a draft has is known only token by token, but
// the weights of the biases are read once for as many as can be guessed.
std::vector<int64_t> Block::likely_tokens() {
    const int64_t size = layers_.model().vocabulary, positions = model_.size - model_.first;
    std::vector<int64_t> tokens;
    std::vector<float> scratch(size_t(size / kBestBlock + 1));
    for (int64_t row = 0; model_.bias.rows && row < rows_; row++) {
        int32_t place = -1;
        if ((row + 1) % positions) kernels_->best(base_.get() + row * size, size, 1, scratch.data(), &place, nullptr);
        if (place >= 0) tokens.push_back(known_ ? known_[place] : place);
    }
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

// Probability that the likeliest token of a position is accepted, from the token before it.
float Block::confidence(int64_t row, int64_t token) {
    const float* state = layers_.judged(row);
    double sum = model_.confidence_bias;
    for (int64_t i = 0; i < layers_.model().hidden; i++) sum += double(model_.confidence[i]) * state[i];
    if (model_.confidence_previous) {
        std::vector<float> previous(size_t(model_.previous.columns));
        unpack_row(model_.previous, token, previous.data());
        for (size_t i = 0; i < previous.size(); i++) sum += double(model_.confidence_previous[i]) * previous[i];
    }
    return float(1 / (1 + std::exp(-sum)));
}

void Block::correct(int64_t branches, float* shares) {
    for (size_t j = 0; j < confidences_.size(); j++) shares[int64_t(j) * branches] = confidences_[j];
}

}  // namespace sk
