#include "decoder.h"

#include <string.h>

#include <algorithm>
#include <fstream>

#include "packing.h"
#include "pieces.h"
#include "variants.h"

namespace sk {

namespace {

// Bytes of the last-level cache that the first processor shares with its neighbours, as Linux says; elsewhere a common
// size. `sysconf` may give the sum over all such groups.
int64_t last_cache() {
    int64_t kilobytes = 0;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kilobytes;
    return (kilobytes > 0 ? kilobytes : 32 << 10) << 10;
}

}  // namespace

Decoder::Decoder(const sk_model& model)
    : model_(model),
      layers_(model.layers, model.layers + model.layer_count),
      ropes_(model.ropes, model.ropes + model.rope_count),
      key_heads_(model.heads) {
    model_.layers = layers_.data();
    epsilon_ = model_.epsilon / (model_.residual_scale * model_.residual_scale);
    model_.ropes = ropes_.data();
    std::vector<sk_matrix*> all{&model_.output, &model_.inputs_projection, &model_.clusters};
    for (sk_layer& layer : layers_)
        for (sk_matrix* each : matrices(layer)) all.push_back(each);
    for (int32_t i = 0; i < model_.layer_count; i++) {
        const sk_layer& layer = layers_[size_t(i)];
        query_width_ = std::max(query_width_, layer.query.rows);
        key_width_ = std::max(key_width_, layer.key.rows);
        gate_width_ = std::max(gate_width_, layer.mixer_gate.rows);
        head_size_ = std::max<int64_t>(head_size_, layer.head_size);
        if (layer.mixer == SK_ATTENTION) key_heads_ = std::min<int64_t>(key_heads_, layer.key_heads);
        if (layer.source == i) caching_layers_ = i + 1;
        sees_later_ |= layer.sees_later != 0;
    }
    int64_t bytes = 0;
    for (const sk_matrix* each : all) bytes += matrix_bytes(*each);
    for (sk_matrix* each : all) each->streamed = bytes > last_cache();
}

void Decoder::attach(const sk_tables& tables, const sk_cache* layers) {
    tables_ = tables;
    caches_.assign(layers, layers + model_.layer_count);
}

void Decoder::pass(const sk_batch& batch) {
    if (batch.tokens == 0) return;
    start(batch);
    plan(batch);
    embed(batch);
    tap(batch, 0, states_.get());
    if (model_.inputs) find_inputs(batch);
    const int32_t last = last_needed(batch);
    for (int32_t i = 0; i < last; i++) {
        layer(layers_[size_t(i)], i, batch);
        if (i + 1 < model_.layer_count) tap(batch, i + 1, states_.get());
    }
    if (lengths_)
        for (const Row& row : rows_) lengths_[batch.slots[row.first]] = commits_[batch.slots[row.first]];
    judge(batch);
}

void Decoder::start(const sk_batch& batch) {
    pool_.start(batch.threads);
    kernels_ = &kernels();
    tokens_ = batch.tokens;
    slots_ = batch.slots;
}

void Decoder::write_keys(const sk_batch& batch) {
    if (batch.tokens == 0) return;
    start(batch);
    plan_rows(batch);
    keys_new_.reserve(tokens_ * key_width_);
    values_new_.reserve(tokens_ * key_width_);
    normed_.reserve(tokens_, model_.hidden);
    each_token(pool_, tokens_, [&](int64_t t) {
        memcpy(normed_.token(t), batch.entered + t * model_.hidden, size_t(model_.hidden) * sizeof(float));
        normed_.quantize(*kernels_, t);
    });
    for (int32_t i = 0; i < model_.layer_count; i++) {
        sk_layer keys = layers_[size_t(i)];
        keys.query.rows = keys.mixer_gate.rows = 0;
        project(keys, i, batch);
    }
}

// Layers that have to be computed: layers after the last cache are for logits and taps only.
int32_t Decoder::last_needed(const sk_batch& batch) const {
    if (batch.judged_count) return model_.layer_count;
    int32_t last = caching_layers_;
    for (int64_t i = 0; i < batch.tap_count; i++) last = std::max(last, batch.taps[i]);
    return last;
}

void Decoder::embed(const sk_batch& batch) {
    each_token(pool_, tokens_, [&](int64_t t) {
        float* state = states_.get() + t * model_.hidden;
        if (batch.entered)
            memcpy(state, batch.entered + t * model_.hidden, size_t(model_.hidden) * sizeof(float));
        else
            unpack_row(model_.embedding, batch.ids[t], state);
        const float factor = (batch.entered ? 1.0f : model_.embedding_scale) / model_.residual_scale;
        if (factor != 1.0f) kernels_->scale(state, model_.hidden, factor);
    });
}

void Decoder::layer(const sk_layer& layer, int32_t index, const sk_batch& batch) {
    enter(layer.attention_norm, {&layer.query, &layer.key, &layer.value, &layer.mixer_gate}, normed_);
    if (layer.attention_conv.rows) convolve_input(layer.attention_conv, layer.attention_conv_base);
    project(layer, index, batch);
    switch (layer.mixer) {
        case SK_SHORT_CONVOLUTION: short_convolution(layer, index, batch); break;
        case SK_DELTA_NET:
        case SK_STATE_SPACE: state_layer(layer, index, batch); break;
        default: attend(layer, batch); attention_out(layer);
    }
    layer.router.rows ? experts(layer) : mlp(layer);
    if (layer.input_gate.rows) add_input(layer, index);
    if (layer.scale != 1.0f)
        each_token(pool_, tokens_,
                   [&](int64_t t) { kernels_->scale(states_.get() + t * model_.hidden, model_.hidden, layer.scale); });
}

// states += norm(matrix · from + bias), or states += its convolution over tokens; both are optional.
void Decoder::add_projection(const sk_matrix& matrix, const float* bias, const Activations& from, const float* out_norm,
                             const float* conv_base) {
    const bool apart = out_norm || conv_base;
    const int64_t total = panels(matrix.rows), share = panels_per_piece(pool_, total);
    const Inputs inputs = from.inputs();
    float* out = apart ? branch_.get() : states_.get();
    auto piece = [&](int64_t i, int) {
        const int64_t first = i * share;
        kernels_->linear(matrix, inputs, first, std::min(total, first + share), 0, tokens_, bias, !apart,
                         out + first * kPanel, matrix.rows);
    };
    pool_.each((total + share - 1) / share, piece);
    if (conv_base) convolve_tokens(conv_base, 1);
    if (!out_norm) return;
    each_token(pool_, tokens_, [&](int64_t t) {
        float* branch = branch_.get() + t * model_.hidden;
        kernels_->norm(branch, out_norm, model_.epsilon, model_.hidden, branch);
        kernels_->add(states_.get() + t * model_.hidden, branch, model_.hidden);
    });
}

// The normalised states, for matrices that read them.
void Decoder::enter(const float* norm, std::initializer_list<const sk_matrix*> readers, Activations& to) {
    const bool codes = std::any_of(readers.begin(), readers.end(), [](const sk_matrix* each) { return wants_codes(*each); });
    prefetch_all(states_.get(), std::min(tokens_, kFewTokens) * model_.hidden * int64_t(sizeof(float)));
    to.reserve(tokens_, model_.hidden);
    each_token(pool_, tokens_, [&](int64_t t) {
        kernels_->norm(states_.get() + t * model_.hidden, norm, epsilon_, model_.hidden, to.token(t));
        if (codes) to.quantize(*kernels_, t);
    });
}

// A piece makes whole groups of the next layer's input, so that it can quantise them at once. It reads the weights of
// as many groups in a row as the scratch memory allows: processors prefetch long runs better.
void Decoder::gate_groups(const GatedMlp& mlp, const Inputs& inputs, const GatePiece& piece, float* scratch,
                          Activations& out) {
    const int64_t begin = piece.expert * panels(piece.size), end_panel = begin + panels(piece.size);
    const int64_t run = std::max<int64_t>(1, kMlpTokens / (piece.to - piece.from));
    for (int64_t g = piece.first; g < piece.last; g += run) {
        const int64_t end_group = std::min(g + run, piece.last), stride = (end_group - g) * kGroup;
        const int64_t first = begin + g * 2, last = std::min(begin + end_group * 2, end_panel);
        for (int64_t t = piece.from; t < piece.to; t += kMlpTokens) {
            const int64_t end = std::min(piece.to, t + kMlpTokens);
            float *gates = scratch, *up = gates + (end - t) * stride;
            kernels_->linear(mlp.gate, inputs, first, last, t, end, mlp.gate_bias, false, gates, stride);
            kernels_->linear(mlp.up, inputs, first, last, t, end, mlp.up_bias, false, up, stride);
            for (int64_t k = t; k < end; k++) {
                kernels_->gate(model_.activation, gates + (k - t) * stride, up + (k - t) * stride,
                               std::min(stride, piece.size - g * kGroup), out.token(k) + g * kGroup);
                if (wants_codes(mlp.down)) out.quantize(*kernels_, k, g * kGroup, end_group * kGroup);
            }
        }
    }
}

void Decoder::mlp(const sk_layer& layer) {
    enter(layer.mlp_norm, {&layer.gate, &layer.up}, normed_);
    if (layer.mlp_conv.rows) convolve_input(layer.mlp_conv, layer.mlp_conv_base);
    const Inputs inputs = normed_.inputs();
    const GatedMlp mlp{layer.gate, layer.up, layer.down, layer.gate_bias, layer.up_bias};
    const int64_t size = layer.gate.rows;
    hidden_.reserve(tokens_, size);
    each_panels(pool_, (size + kGroup - 1) / kGroup, [&](int64_t first, int64_t last, int thread) {
        gate_groups(mlp, inputs, {0, size, first, last, 0, tokens_}, scratch_[size_t(thread)].get(), hidden_);
    });
    add_projection(layer.down, layer.down_bias, hidden_, layer.mlp_out_norm, layer.mlp_conv_base);
}

void Decoder::tap(const sk_batch& batch, int32_t depth, const float* states) {
    for (int64_t i = 0; i < batch.tap_count; i++)
        if (batch.taps[i] == depth)
            for (int64_t t = 0; t < tokens_; t++) {
                float* to = batch.tapped + (t * batch.tap_count + i) * model_.hidden;
                memcpy(to, states + t * model_.hidden, size_t(model_.hidden) * sizeof(float));
                if (depth < model_.layer_count && model_.residual_scale != 1.0f)
                    kernels_->scale(to, model_.hidden, model_.residual_scale);
            }
}

// The final norm for the taps that ask for it, and logits of the judged tokens.
void Decoder::judge(const sk_batch& batch) {
    const bool tapped = std::count(batch.taps, batch.taps + batch.tap_count, model_.layer_count) > 0;
    if (tapped) {
        each_token(pool_, tokens_, [&](int64_t t) {
            kernels_->norm(states_.get() + t * model_.hidden, model_.final_norm, epsilon_, model_.hidden,
                           normed_.token(t));
        });
        tap(batch, model_.layer_count, normed_.token(0));
    }
    if (batch.judged_count == 0) return;
    judged_.reserve(batch.judged_count, model_.hidden);
    each_token(pool_, batch.judged_count, [&](int64_t i) {
        kernels_->norm(states_.get() + batch.judged[i] * model_.hidden, model_.final_norm, epsilon_,
                       model_.hidden, judged_.token(i));
        if (wants_codes(model_.output)) judged_.quantize(*kernels_, i);
    });
    model_.clusters.rows ? score_clusters(batch) : score(batch);
    if (model_.exact.rows) score_likeliest(batch);
    if (batch.best) find_best(batch);
}

void Decoder::score(const sk_batch& batch) {
    const int64_t total = panels(model_.vocabulary);
    const int64_t share = std::min<int64_t>(64, panels_per_piece(pool_, total));
    const Inputs inputs = judged_.inputs();
    auto piece = [&](int64_t i, int) {
        const int64_t first = i * share, last = std::min(total, first + share);
        kernels_->linear(model_.output, inputs, first, last, 0, batch.judged_count, nullptr, false,
                         batch.logits + first * kPanel, model_.vocabulary);
        const int64_t width = std::min<int64_t>(model_.vocabulary, last * kPanel) - first * kPanel;
        for (int64_t j = 0; j < batch.judged_count; j++)
            finish_logits(batch.logits + j * model_.vocabulary + first * kPanel, width);
    };
    pool_.each((total + share - 1) / share, piece);
}

void Decoder::finish_logits(float* logits, int64_t count) const {
    if (model_.logit_scale != 1.0f) kernels_->multiply_by(logits, count, model_.logit_scale);
    if (model_.logit_cap != 0.0f) kernels_->cap(logits, count, model_.logit_cap);
}

void Decoder::find_best(const sk_batch& batch) {
    auto piece = [&](int64_t i, int thread) {
        const int64_t place = i * batch.best_count;
        kernels_->best(batch.logits + i * model_.vocabulary, model_.vocabulary, batch.best_count,
                       scratch_[size_t(thread)].get(), batch.best + place, batch.shares ? batch.shares + place : nullptr);
    };
    pool_.each(batch.judged_count, piece);
}

}  // namespace sk
