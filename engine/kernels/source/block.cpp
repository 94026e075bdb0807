#include "block.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "packing.h"
#include "pieces.h"

namespace sk {

Block::Block(const sk_block_model& model)
    : StateDrafter(model.layers, model.fuse, model.tap_count, {model.candidates ? model.factor : model.bias}),
      model_(model),
      expected_(positions()) {}

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
    std::vector<Following> places;
    int64_t deepest = 0;
    for (int64_t j = 0; j < batch.judged_count; j++) {
        const int32_t t = batch.judged[j];
        const int64_t position = step.sources[t] < 0 ? 0 : batch.positions[t] - batch.prefixes[t] + 1;
        places.push_back({blocks_[size_t(batch.slots[t])] * positions() + position, batch.ids[t]});
        deepest = std::max(deepest, position);
    }
    if (deepest >= scored_) {
        const int64_t first = scored_;
        const sk_batch rest = this->rows(first, positions());
        layers_.judge(rest);
        note_scores(rest, first, positions());
    }
    deepest_ = std::max(deepest_, deepest);
    find_biases(places);
    auto piece = [&](int64_t j, int) {
        float* logits = batch.logits + j * layers_.model().vocabulary;
        model_.candidates ? choose(places[size_t(j)], logits) : bias_of(places[size_t(j)], logits);
    };
    pool_.each(batch.judged_count, piece);
    chances_.clear();
    for (const Following& each : places)
        if (model_.confidence) chances_.push_back(confidence(each));
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
    likely_.assign(logits_.size() * size_t(noted()), -1);
    factors_.assign(logits_.size() * size_t(model_.factor.rows), 0.0f);
    const sk_batch batch = rows(0, expected_);
    std::string wrong = layers_.fault(batch);
    if (!wrong.empty()) return wrong;
    layers_.pass(batch);
    will_fetch();
    note_scores(batch, 0, expected_);
    biases_.clear();
    bias_passes_ = 0;
    find_biases(likely_places(lasts));
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
    const int64_t size = layers_.model().vocabulary, width = model_.factor.rows;
    if (width) find_factors(batch.judged_count);
    while (int(scratch_.size()) < pool_.threads()) scratch_.emplace_back();
    auto piece = [&](int64_t j, int thread) {
        const int64_t row = j / (last - first) * positions() + first + j % (last - first);
        const float* logits = logits_[size_t(row)] = batch.logits + j * size;
        for (int64_t i = 0; model_.confidence && i < layers_.model().hidden; i++)
            confidences_[size_t(row)] += double(model_.confidence[i]) * layers_.judged(j)[i];
        std::copy_n(products_.get() + j * width, width, factors_.data() + row * width);
        if (model_.bias.rows)
            kernels_->best(logits, size, noted(), scratch_[size_t(thread)].reserve(size / kBestBlock + 1),
                           likely_.data() + row * noted(), nullptr);
    };
    pool_.each(batch.judged_count, piece);
    scored_ = last;
}

// Products of `factor` and what the last judged tokens are scored with.
void Block::find_factors(int64_t count) {
    const int64_t hidden = layers_.model().hidden;
    states_.reserve(count, hidden);
    float* out = products_.reserve(count * model_.factor.rows);
    for (int64_t j = 0; j < count; j++) std::copy_n(layers_.judged(j), hidden, states_.token(j));
    multiply(model_.factor, states_, count, model_.factor_bias, out);
}

// out [count, rows] = matrix · each of these inputs + bias
void Block::multiply(const sk_matrix& matrix, Activations& in, int64_t count, const float* bias, float* out) {
    for (int64_t i = 0; i < count && is_quantized(matrix.format); i++) in.quantize(*kernels_, i);
    const Inputs inputs = in.inputs();
    each_panels(pool_, panels(matrix.rows), [&](int64_t first, int64_t last, int) {
        kernels_->linear(matrix, inputs, first, last, 0, count, bias, false, out + first * kPanel, matrix.rows);
    });
}

// The places of the last tokens, and those after the likeliest token of every position. Which tokens a draft has is known only
// token by token, but the weights of the biases are read once for as many as can be guessed.
std::vector<Block::Following> Block::likely_places(const sk_batch& lasts) const {
    std::vector<Following> places;
    for (int64_t b = 0; b < count_; b++) {
        int64_t token = lasts.ids[lasts.judged[b]];
        for (int64_t row = b * positions(); row < b * positions() + scored_ && token >= 0; row++) {
            places.push_back({row, token});
            const int32_t place = likely_[size_t(row * noted())];
            token = place >= 0 && known_ ? known_[place] : place;
        }
    }
    return places;
}

// Computes the biases of places that it has not computed since the last block.
void Block::find_biases(std::vector<Following> places) {
    if (!model_.bias.rows || model_.candidates) return;
    const auto before = [&](const Following& a, const Following& b) { return number(a) < number(b); };
    const auto same = [&](const Following& a, const Following& b) { return number(a) == number(b); };
    const auto known = [&](const Following& at) { return biases_.count(number(at)) > 0; };
    std::sort(places.begin(), places.end(), before);
    places.erase(std::unique(places.begin(), places.end(), same), places.end());
    places.erase(std::remove_if(places.begin(), places.end(), known), places.end());
    if (places.empty()) return;
    const int64_t count = int64_t(places.size()), rank = model_.previous.columns, size = layers_.model().vocabulary;
    previous_.reserve(count, rank);
    for (int64_t i = 0; i < count; i++) unpack_row(model_.previous, places[size_t(i)].token, previous_.token(i));
    if (model_.factor_previous.rows) {
        float* gates = products_.reserve(count * rank);
        multiply(model_.factor_previous, previous_, count, nullptr, gates);
        for (int64_t i = 0; i < count; i++) {
            kernels_->add(gates + i * rank, factors_.data() + places[size_t(i)].row * rank, rank);
            kernels_->gate(SK_SIGMOID, gates + i * rank, previous_.token(i), rank, previous_.token(i));
        }
    }
    if (bias_memory_.size() == bias_passes_) bias_memory_.emplace_back();
    float* out = bias_memory_[bias_passes_++].reserve(count * size);
    multiply(model_.bias, previous_, count, nullptr, out);
    for (int64_t i = 0; i < count; i++) biases_[number(places[size_t(i)])] = out + i * size;
}

// The logits of a place with its bias.
void Block::bias_of(const Following& at, float* logits) const {
    const float* plain = logits_[size_t(at.row)];
    const int64_t size = layers_.model().vocabulary;
    if (!model_.bias.rows) {
        std::copy_n(plain, size, logits);
        return;
    }
    const float* bias = biases_.at(number(at));
    for (int64_t i = 0; i < size; i++) logits[i] = plain[i] + bias[i];
}

// The same of the likeliest tokens alone.
void Block::choose(const Following& at, float* logits) const {
    const float* plain = logits_[size_t(at.row)];
    const int64_t size = layers_.model().vocabulary, rank = model_.previous.columns;
    const int32_t* likely = likely_.data() + at.row * noted();
    if (likely[0] < 0) {  // a logit is not a number
        std::copy_n(plain, size, logits);
        return;
    }
    std::vector<float> previous(size_t(rank), 0.0f), next = previous;
    unpack_row(model_.previous, at.token, previous.data());
    for (int64_t i = 0; i < rank; i++) previous[size_t(i)] *= factors_[size_t(at.row * rank + i)];
    std::fill_n(logits, size, kNotScored);
    for (int64_t k = 0; k < model_.candidates; k++) {
        unpack_row(model_.bias, likely[k], next.data());
        logits[likely[k]] = std::inner_product(next.begin(), next.end(), previous.begin(), plain[likely[k]]);
    }
}

// Probability that the likeliest token of a row is accepted, from the token before it.
float Block::confidence(const Following& at) const {
    double sum = model_.confidence_bias + confidences_[size_t(at.row)];
    if (model_.confidence_previous) {
        std::vector<float> previous(size_t(model_.previous.columns));
        unpack_row(model_.previous, at.token, previous.data());
        for (size_t i = 0; i < previous.size(); i++) sum += double(model_.confidence_previous[i]) * previous[i];
    }
    return float(1 / (1 + std::exp(-sum)));
}

void Block::correct(int64_t branches, float* shares) {
    for (size_t j = 0; j < chances_.size(); j++) shares[int64_t(j) * branches] = chances_[j];
}

}  // namespace sk
