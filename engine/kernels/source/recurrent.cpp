// Recurrent layers in the place of attention: short convolutions (LFM2), y = gate · convolution(gate · x), gated delta
// nets (Qwen3.5), and state space models (Mamba-2 in Granite 4).
//
// A slot has the state of one of the latter two after some tokens, and in a ring what the tokens after it add. A pass works on a copy of
// the state, brings it to its first token with their updates, and stores it where it has read as many tokens as the caller
// says. What follows from rejected tokens is only in the ring, where the next pass writes over it.
#include <string.h>

#include <cmath>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

constexpr float kUnitEpsilon = 1e-6f;  // of the lengths of queries and keys

}  // namespace

void Decoder::attach_recurrent(int32_t ring, float* const* rings, float* const* stored, int32_t* lengths,
                               const int32_t* commits) {
    ring_ = ring;
    rings_.assign(rings, rings + model_.layer_count);
    stored_.assign(stored, stored + model_.layer_count);
    lengths_ = lengths;
    commits_ = commits;
    delta_keys_ = int64_t(model_.delta_key_heads) * model_.delta_key_size;
    delta_values_ = int64_t(model_.delta_value_heads) * model_.delta_value_size;
    channels_ = delta_values_ ? 2 * delta_keys_ + delta_values_ : model_.hidden;
    update_ = delta_values_ ? channels_ + delta_keys_ + delta_values_ + model_.delta_value_heads : channels_;
    zeros_.assign(size_t(channels_), 0.0f);
    const size_t size = size_t(model_.delta_key_size);
    units_.assign(2 * size, 1.0f / std::sqrt(float(size)));
    std::fill_n(units_.begin(), size, 1.0f / float(size));  // attention divides queries by sqrt(size) once more
}

float* Decoder::update(int32_t index, int32_t slot, int64_t position) const {
    return rings_[size_t(index)] + (slot * ring_ + position % ring_) * update_;
}

void Decoder::plan_recurrent() {
    mixed_.reserve(tokens_, delta_values_ ? delta_values_ : model_.hidden);
    convolved_.reserve(tokens_ * channels_);
    factors_.reserve(tokens_ * 2 * model_.delta_value_heads);
}

// The convolution's outputs for token t; the inputs of the pass begin the rows of `queries_`.
void Decoder::convolve(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t t, bool with_silu,
                       float* out) {
    const float* inputs[kMostTaps];
    for (int64_t j = 0; j < model_.taps; j++) {
        const int64_t back = model_.taps - 1 - j, position = batch.positions[t] - back;
        const bool own = back <= t && batch.slots[t - back] == batch.slots[t];
        inputs[j] = own            ? queries_.get() + (t - back) * layer.query.rows
                    : position < 0 ? zeros_.data()
                                   : update(index, batch.slots[t], position);
    }
    kernels_->convolve(inputs, layer.convolution, layer.convolution_bias, model_.taps, channels_, with_silu, out);
}

void Decoder::keep_updates(const sk_layer& layer, int32_t index, const sk_batch& batch) {
    const auto copy = [](float* to, const float* from, int64_t count) { memcpy(to, from, size_t(count) * sizeof(float)); };
    for (const Row& row : rows_)
        for (int64_t t = row.first + std::max<int64_t>(0, row.count - ring_); t < row.first + row.count; t++) {
            float* to = update(index, batch.slots[t], batch.positions[t]);
            copy(to, queries_.get() + t * layer.query.rows, channels_);
            if (layer.mixer == SK_SHORT_CONVOLUTION) continue;
            copy(to + channels_, convolved_.get() + t * channels_ + delta_keys_, delta_keys_ + delta_values_);
            copy(to + update_ - model_.delta_value_heads, factors_.get() + t * 2 * model_.delta_value_heads,
                 model_.delta_value_heads);
        }
}

void Decoder::short_convolution(const sk_layer& layer, int32_t index, const sk_batch& batch) {
    const int64_t hidden = model_.hidden;
    const auto projected = [&](int64_t t) { return queries_.get() + t * 3 * hidden; };
    each_token(pool_, tokens_, [&](int64_t t) {
        kernels_->gate(SK_IDENTITY, projected(t), projected(t) + 2 * hidden, hidden, projected(t));
    });
    each_token(pool_, tokens_, [&](int64_t t) {
        float* out = mixed_.token(t);
        convolve(layer, index, batch, t, false, out);
        kernels_->gate(SK_IDENTITY, out, projected(t) + hidden, hidden, out);
        if (wants_codes(layer.output)) mixed_.quantize(*kernels_, t);
    });
    keep_updates(layer, index, batch);
    add_projection(layer.output, layer.output_bias, mixed_, nullptr);
}

// Queries, keys, values, decays and betas of token t. Queries and keys of a delta net have unit length. Of a state space
// model, betas are steps in time, which the values are multiplied by.
void Decoder::delta_inputs(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t t) {
    const int64_t size = model_.delta_key_size, heads = model_.delta_value_heads;
    float* convolved = convolved_.get() + t * channels_;
    convolve(layer, index, batch, t, true, convolved);
    const bool space = layer.mixer == SK_STATE_SPACE;
    for (int64_t h = 0; h < 2 * model_.delta_key_heads && !space; h++)
        kernels_->norm(convolved + h * size, units_.data() + (h < model_.delta_key_heads ? 0 : size),
                       kUnitEpsilon / float(size), size, convolved + h * size);
    float* factors = factors_.get() + t * 2 * heads;
    for (int64_t h = 0; h < heads; h++) {
        const double input = double(values_new_.get()[t * heads + h]) + layer.decay_bias[h];
        const double softplus = input > 20.0 ? input : std::log1p(std::exp(input));
        factors[h] = float(std::exp(layer.decay_rate[h] * softplus));
        factors[heads + h] =
            float(space ? softplus : 1.0 / (1.0 + std::exp(-double(keys_new_.get()[t * heads + h]))));
    }
    for (int64_t h = 0; h < heads && space; h++) {
        const int64_t width = model_.delta_value_size;
        float *values = convolved + 2 * delta_keys_ + h * width, *out = mixed_.token(t) + h * width;
        memcpy(out, values, size_t(width) * sizeof(float));
        kernels_->scale(out, width, layer.skip[h]);
        kernels_->scale(values, width, factors[heads + h]);
    }
}

// What the states answer to the queries, in `mixed_`; the values of a delta net in `convolved_` become deltas.
void Decoder::delta_rule(const sk_layer& layer, int32_t index, const sk_batch& batch) {
    const int64_t heads = model_.delta_value_heads, key_size = model_.delta_key_size, size = model_.delta_value_size;
    const int64_t shared = heads / model_.delta_key_heads, parts = (size + kDeltaColumns - 1) / kDeltaColumns;
    auto piece = [&](int64_t i, int thread) {
        const Row& row = rows_[size_t(i / parts / heads)];
        const int64_t head = i / parts % heads, column = i % parts * kDeltaColumns;
        const int64_t value = head * size + column, key = head / shared * key_size;
        const int32_t slot = batch.slots[row.first];
        float* convolved = convolved_.get() + row.first * channels_;
        DeltaRule work{};
        work.state = stored_[size_t(index)] + (slot * heads + head) * key_size * size + column;
        work.stride = size;
        work.key_size = key_size;
        work.width = std::min(kDeltaColumns, size - column);
        work.base = lengths_[slot];
        work.commit = commits_[slot];
        work.start = batch.positions[row.first];
        work.end = work.start + row.count;
        work.updates = update(index, slot, 0);
        work.ring = ring_;
        work.update = update_;
        work.key_at = channels_ + key;
        work.delta_at = channels_ + delta_keys_ + value;
        work.decay_at = update_ - heads + head;
        work.queries = convolved + key;
        work.keys = convolved + delta_keys_ + key;
        work.values = convolved + 2 * delta_keys_ + value;
        work.token_stride = channels_;
        work.decays = factors_.get() + row.first * 2 * heads + head;
        work.betas = layer.mixer == SK_DELTA_NET ? work.decays + heads : nullptr;
        work.factor_stride = 2 * heads;
        work.out = mixed_.token(row.first) + value;
        work.out_stride = layer.output.columns;
        work.scratch = scratch_[size_t(thread)].get();
        kernels_->delta_rule(work);
    };
    pool_.each(int64_t(rows_.size()) * heads * parts, piece);
}

// A delta net or a state space model.
void Decoder::state_layer(const sk_layer& layer, int32_t index, const sk_batch& batch) {
    const bool space = layer.mixer == SK_STATE_SPACE;
    const int64_t heads = space ? model_.delta_key_heads : model_.delta_value_heads, size = delta_values_ / heads;
    each_token(pool_, tokens_, [&](int64_t t) { delta_inputs(layer, index, batch, t); });
    delta_rule(layer, index, batch);
    keep_updates(layer, index, batch);
    each_token(pool_, tokens_, [&](int64_t t) {
        float *out = mixed_.token(t), *gates = gates_.get() + t * delta_values_;
        if (space) kernels_->gate(SK_SILU, gates, out, delta_values_, out);
        for (int64_t h = 0; h < heads; h++)
            kernels_->norm(out + h * size, layer.delta_norm + (space ? h * size : 0), model_.epsilon, size, out + h * size);
        if (!space) kernels_->gate(SK_SILU, gates, out, delta_values_, out);
        if (wants_codes(layer.output)) mixed_.quantize(*kernels_, t);
    });
    add_projection(layer.output, layer.output_bias, mixed_, nullptr);
}

}  // namespace sk
