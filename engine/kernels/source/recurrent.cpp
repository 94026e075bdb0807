// Recurrent layers: short convolutions and gated delta nets, whose tokens can be taken back.
//
// A slot stores one state per layer, after `base` tokens, and the updates of the tokens after it in a ring by position:
// the inputs of the convolution, and for a delta net keys, deltas and decays. A pass works on a copy of the state,
// brings it to its first token with the updates, and stores it where `commit` tokens have been read. What follows from
// rejected tokens is only in updates, which the next pass overwrites.
#include <string.h>

#include <cmath>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

constexpr float kUnitEpsilon = 1e-6f;  // of the lengths of queries and keys
constexpr int64_t kLongestConvolution = 8;

}  // namespace

Decoder::StateSizes Decoder::state_sizes() const {
    StateSizes sizes{};
    sizes.keys = int64_t(model_.state_key_heads) * model_.state_key_size;
    sizes.values = int64_t(model_.state_value_heads) * model_.state_value_size;
    for (const sk_layer& layer : layers_)
        if (layer.mixer != SK_ATTENTION) sizes.channels = layer.mixer == SK_DELTA_NET ? layer.query.rows : model_.hidden;
    sizes.state = sizes.values * model_.state_key_size;
    const int64_t decays = (model_.state_value_heads + kPanel - 1) / kPanel * kPanel;
    sizes.update = sizes.channels + sizes.keys + sizes.values + decays;
    return sizes;
}

void Decoder::attach_states(float* states, float* updates, int32_t kept) {
    stored_ = states;
    updates_ = updates;
    kept_ = kept;
}

float* Decoder::update(int64_t place, int32_t slot, int64_t position) {
    return updates_ + ((slot * recurrent_ + place) * kept_ + position % kept_) * state_sizes().update;
}

void Decoder::plan_states(int64_t width) {
    row_of_.clear();
    for (size_t r = 0; r < rows_.size(); r++) row_of_.insert(row_of_.end(), size_t(rows_[r].count), int64_t(r));
    mixed_.reserve(tokens_, width);
    convolved_.reserve(tokens_ * state_sizes().channels);
    factors_.reserve(tokens_ * 2 * model_.state_value_heads);
    const int64_t size = model_.state_key_size;
    float* units = units_.reserve(2 * size);
    for (int64_t i = 0; i < size; i++) {
        units[i] = 1.0f / std::sqrt(float(size));
        units[size + i] = 1.0f / float(size);
    }
}

// The convolution's output for token t, whose inputs begin the rows of `queries_`.
void Decoder::convolve(const sk_layer& layer, int64_t place, const sk_batch& batch, int64_t t, int64_t stride,
                       bool with_silu, float* out) {
    const float* inputs[kLongestConvolution];
    const int64_t size = model_.convolution_size, before = t - rows_[size_t(row_of_[size_t(t)])].first;
    for (int64_t k = 0; k < size; k++) {
        const int64_t back = size - 1 - k, position = batch.positions[t] - back;
        if (back <= before)
            inputs[k] = queries_.get() + (t - back) * stride;
        else
            inputs[k] = position < 0 ? nullptr : update(place, batch.slots[t], position);
    }
    kernels_->convolve(inputs, size, layer.convolution, layer.convolution_bias, state_sizes().channels, with_silu, out);
}

// Keeps the inputs of the convolution for the next pass.
void Decoder::keep_inputs(int64_t place, const sk_batch& batch, int64_t stride) {
    const size_t bytes = size_t(state_sizes().channels) * sizeof(float);
    for (const Row& row : rows_)
        for (int64_t t = row.first + std::max<int64_t>(0, row.count - kept_); t < row.first + row.count; t++)
            memcpy(update(place, batch.slots[t], batch.positions[t]), queries_.get() + t * stride, bytes);
}

void Decoder::short_convolution(const sk_layer& layer, int64_t place, const sk_batch& batch) {
    const int64_t hidden = model_.hidden, stride = 3 * hidden;
    each_token(pool_, tokens_, [&](int64_t t) {
        float* inputs = queries_.get() + t * stride;
        kernels_->gate(SK_PRODUCT, inputs, inputs + 2 * hidden, hidden, inputs);
    });
    each_token(pool_, tokens_, [&](int64_t t) {
        float* out = mixed_.token(t);
        convolve(layer, place, batch, t, stride, false, out);
        kernels_->gate(SK_PRODUCT, queries_.get() + t * stride + hidden, out, hidden, out);
        if (is_quantized(layer.output.format)) mixed_.quantize(*kernels_, t);
    });
    keep_inputs(place, batch, stride);
    add_projection(layer.output, layer.output_bias, mixed_, nullptr);
}

// Queries and keys of unit length, values, decays and betas of token t.
void Decoder::delta_inputs(const sk_layer& layer, int64_t place, int64_t t, const sk_batch& batch) {
    const StateSizes sizes = state_sizes();
    const int64_t size = model_.state_key_size, heads = model_.state_value_heads;
    float* convolved = convolved_.get() + t * sizes.channels;
    convolve(layer, place, batch, t, sizes.channels, true, convolved);
    for (int64_t h = 0; h < 2 * model_.state_key_heads; h++) {
        const float* unit = units_.get() + (h < model_.state_key_heads ? size : 0);  // queries / sqrt(size)
        kernels_->norm(convolved + h * size, unit, kUnitEpsilon / float(size), size, convolved + h * size);
    }
    float* factors = factors_.get() + t * 2 * heads;
    for (int64_t h = 0; h < heads; h++) {
        const double input = double(values_new_.get()[t * heads + h]) + layer.decay_bias[h];
        const double softplus = input > 20.0 ? input : std::log1p(std::exp(input));
        factors[h] = float(std::exp(layer.decay_rate[h] * softplus));
        factors[heads + h] = float(1.0 / (1.0 + std::exp(-double(keys_new_.get()[t * heads + h]))));
    }
}

void Decoder::delta_net(const sk_layer& layer, int64_t place, const sk_batch& batch) {
    const StateSizes sizes = state_sizes();
    const int64_t heads = model_.state_value_heads, size = model_.state_value_size;
    const int64_t shared = heads / model_.state_key_heads, parts = (size + kDeltaColumns - 1) / kDeltaColumns;
    each_token(pool_, tokens_, [&](int64_t t) { delta_inputs(layer, place, t, batch); });
    auto piece = [&](int64_t i, int thread) {
        const int64_t part = i % parts, head = i / parts % heads, r = i / parts / heads;
        const Row& row = rows_[size_t(r)];
        const int64_t slot = batch.slots[row.first], column = part * kDeltaColumns, value = head * size + column;
        const int64_t key = head / shared * model_.state_key_size;
        float* convolved = convolved_.get() + row.first * sizes.channels;
        DeltaRule work{};
        work.state = stored_ + (slot * recurrent_ + place) * sizes.state + head * size * model_.state_key_size + column;
        work.stride = size;
        work.key_size = model_.state_key_size;
        work.width = std::min(kDeltaColumns, size - column);
        work.base = batch.bases[r];
        work.commit = batch.commits[r];
        work.start = batch.positions[row.first];
        work.end = work.start + row.count;
        work.updates = update(place, int32_t(slot), 0);
        work.kept = kept_;
        work.update_size = sizes.update;
        work.key_at = sizes.channels + key;
        work.delta_at = sizes.channels + sizes.keys + value;
        work.decay_at = sizes.channels + sizes.keys + sizes.values + head;
        work.queries = convolved + key;
        work.keys = convolved + sizes.keys + key;
        work.values = convolved + 2 * sizes.keys + value;
        work.token_stride = sizes.channels;
        work.decays = factors_.get() + row.first * 2 * heads + head;
        work.betas = work.decays + heads;
        work.factor_stride = 2 * heads;
        work.out = mixed_.token(row.first) + value;
        work.out_stride = sizes.values;
        work.scratch = scratch_[size_t(thread)].get();
        kernels_->delta_rule(work);
    };
    pool_.each(int64_t(rows_.size()) * heads * parts, piece);
    keep_inputs(place, batch, sizes.channels);
    for (const Row& row : rows_)
        for (int64_t t = row.first + std::max<int64_t>(0, row.count - kept_); t < row.first + row.count; t++) {
            float* to = update(place, batch.slots[t], batch.positions[t]) + sizes.channels;
            memcpy(to, convolved_.get() + t * sizes.channels + sizes.keys,
                   size_t(sizes.keys + sizes.values) * sizeof(float));
            memcpy(to + sizes.keys + sizes.values, factors_.get() + t * 2 * heads, size_t(heads) * sizeof(float));
        }
    each_token(pool_, tokens_, [&](int64_t t) {
        float* out = mixed_.token(t);
        for (int64_t h = 0; h < heads; h++)
            kernels_->norm(out + h * size, layer.state_norm, model_.epsilon, size, out + h * size);
        kernels_->gate(SK_SILU, gates_.get() + t * sizes.values, out, sizes.values, out);
        if (is_quantized(layer.output.format)) mixed_.quantize(*kernels_, t);
    });
    add_projection(layer.output, layer.output_bias, mixed_, nullptr);
}

}  // namespace sk
