// Mixtures of experts: the MLP of a token is the weighted sum of the few experts that its router chooses, and of one that
// all tokens share, if the layer has it.
//
// An expert computes all tokens of the pass that chose it, and its weights are read once. A token adds its experts in the
// order of their scores, so its bits do not depend on the choices of other tokens.
#include <algorithm>
#include <cmath>
#include <limits>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

constexpr float kSigmoidEpsilon = 1e-6f;  // of the sum of weights that are sigmoids, as LFM2 has it

float sigmoid(float x) { return float(1.0 / (1.0 + std::exp(-double(x)))); }

}  // namespace

void Decoder::experts(const sk_layer& layer) {
    enter(layer.mlp_norm,
          {&layer.gate, &layer.up, &layer.router, &layer.shared_gate, &layer.shared_up, &layer.shared_router}, normed_);
    if (layer.router_norm) enter(layer.router_norm, {&layer.router}, routing_.asked);
    if (layer.shared_norm) enter(layer.shared_norm, {&layer.shared_gate, &layer.shared_up}, routing_.shared);
    route(layer);
    sort_by_expert();
    run_experts(layer);
    add_experts(layer);
}

// The experts of every token, and their weights.
void Decoder::route(const sk_layer& layer) {
    const int64_t experts = model_.experts, chosen = model_.experts_per_token, wide = panels(experts);
    float* scores = routing_.scores.reserve(tokens_ * experts);
    float* shared = routing_.shared_scores.reserve(tokens_);
    routing_.chosen.resize(size_t(tokens_ * chosen));
    routing_.weights.resize(size_t(tokens_ * chosen));
    const Inputs inputs = (layer.router_norm ? routing_.asked : normed_).inputs(), own = normed_.inputs();
    each_panels(pool_, wide + layer.shared_router.rows, [&](int64_t first, int64_t last, int) {
        if (first < wide)
            kernels_->linear(layer.router, inputs, first, std::min(last, wide), 0, tokens_, layer.router_bias, false,
                             scores + first * kPanel, experts);
        if (last > wide) kernels_->linear(layer.shared_router, own, 0, 1, 0, tokens_, nullptr, false, shared, 1);
    });
    each_token(pool_, tokens_, [&](int64_t t) {
        choose(layer, scores + t * experts, routing_.chosen.data() + t * chosen, routing_.weights.data() + t * chosen);
    });
}

// The experts of a token with the highest scores, a softmax or sigmoids of the router's outputs, and their weights.
void Decoder::choose(const sk_layer& layer, float* scores, int32_t* places, float* weights) {
    const int64_t experts = model_.experts, chosen = model_.experts_per_token;
    float scratch[kMostExperts / kBestBlock + 1], ranks[kMostExperts];
    if (model_.sigmoid_experts) {
        for (int64_t e = 0; e < experts; e++) {
            scores[e] = sigmoid(scores[e]);
            ranks[e] = scores[e] + (layer.choice_bias ? layer.choice_bias[e] : 0.0f);
        }
        kernels_->best(ranks, experts, chosen, scratch, places, nullptr);
        for (int64_t j = 0; j < chosen; j++) weights[j] = scores[std::max(places[j], 0)];
    } else {
        kernels_->best(scores, experts, chosen, scratch, places, weights);
    }
    float total = model_.sigmoid_experts ? kSigmoidEpsilon : 0.0f;
    for (int64_t j = 0; j < chosen; j++) total += weights[j];
    for (int64_t j = 0; j < chosen; j++) {
        if (places[j] < 0) {  // scores that are not numbers make the output one that is not
            places[j] = int32_t(j);
            weights[j] = std::numeric_limits<float>::quiet_NaN();
            continue;
        }
        if (model_.normalise_experts) weights[j] /= total;
        weights[j] *= model_.routed_scale;
        if (layer.expert_scale) weights[j] *= layer.expert_scale[places[j]];
    }
}

// A row per choice, sorted by expert and then by token, with the token's input.
void Decoder::sort_by_expert() {
    const int64_t chosen = model_.experts_per_token, rows = tokens_ * chosen;
    routing_.starts.assign(size_t(model_.experts + 1), 0);
    for (int32_t expert : routing_.chosen) routing_.starts[size_t(expert + 1)]++;
    routing_.runs.clear();
    for (int64_t e = 0; e < model_.experts; e++) {
        int64_t& next = routing_.starts[size_t(e + 1)];
        const int64_t first = routing_.starts[size_t(e)];
        next += first;
        if (next > first) routing_.runs.push_back({e, first, next});
    }
    routing_.rows.resize(size_t(rows));
    for (int64_t i = 0; i < rows; i++)
        routing_.rows[size_t(i)] = routing_.starts[size_t(routing_.chosen[size_t(i)])]++;
    routing_.in.reserve(rows, model_.hidden);
    each_token(pool_, tokens_, [&](int64_t t) {
        for (int64_t i = t * chosen; i < (t + 1) * chosen; i++) routing_.in.copy(routing_.rows[size_t(i)], normed_, t);
    });
}

// The outputs of all rows, [rows, hidden], and of the shared expert, [tokens, hidden].
void Decoder::run_experts(const sk_layer& layer) {
    const int64_t rows = int64_t(routing_.rows.size()), runs = int64_t(routing_.runs.size()), hidden = model_.hidden;
    const int64_t size = model_.expert_size, groups = (size + kGroup - 1) / kGroup, wide = panels(hidden);
    const int64_t all = layer.shared_gate.rows, all_groups = (all + kGroup - 1) / kGroup;
    const GatedMlp chosen{layer.gate, layer.up, layer.down, layer.gate_bias, layer.up_bias};
    const GatedMlp shared{layer.shared_gate, layer.shared_up, layer.shared_down, nullptr, nullptr};
    routing_.hidden.reserve(rows, size);
    hidden_.reserve(tokens_, all);
    float* out = routing_.out.reserve(rows * hidden);
    const Inputs inputs = routing_.in.inputs(), inner = routing_.hidden.inputs(), shared_inner = hidden_.inputs();
    const Inputs shared_inputs = (layer.shared_norm ? routing_.shared : normed_).inputs();
    each_panels(pool_, runs * groups + all_groups, [&](int64_t first, int64_t last, int thread) {
        float* scratch = scratch_[size_t(thread)].get();
        for (int64_t i = first, end; i < std::min(last, runs * groups); i = end) {
            const Routing::Run& run = routing_.runs[size_t(i / groups)];
            end = std::min(last, (i / groups + 1) * groups);
            const int64_t group = i % groups;
            gate_groups(chosen, inputs, {run.expert, size, group, group + end - i, run.first, run.last}, scratch,
                        routing_.hidden);
        }
        if (last > runs * groups)
            gate_groups(shared, shared_inputs,
                        {0, all, std::max<int64_t>(0, first - runs * groups), last - runs * groups, 0, tokens_}, scratch,
                        hidden_);
    });
    each_panels(pool_, runs * wide + panels(layer.shared_down.rows), [&](int64_t first, int64_t last, int) {
        for (int64_t i = first, end; i < std::min(last, runs * wide); i = end) {
            const Routing::Run& run = routing_.runs[size_t(i / wide)];
            end = std::min(last, (i / wide + 1) * wide);
            const int64_t panel = run.expert * wide + i % wide;
            kernels_->linear(layer.down, inner, panel, panel + end - i, run.first, run.last, layer.down_bias, false,
                             out + run.first * hidden + i % wide * kPanel, hidden);
        }
        const int64_t panel = std::max<int64_t>(0, first - runs * wide);
        if (last > runs * wide)
            kernels_->linear(layer.shared_down, shared_inner, panel, last - runs * wide, 0, tokens_, nullptr, false,
                             branch_.get() + panel * kPanel, hidden);
    });
}

// states += norm(norm(weighted sum of the experts' outputs) + weight · norm(output of the shared expert)); norms are optional.
void Decoder::add_experts(const sk_layer& layer) {
    const int64_t chosen = model_.experts_per_token, hidden = model_.hidden;
    const auto norm = [&](const float* weight, float* x) {
        if (weight) kernels_->norm(x, weight, model_.epsilon, hidden, x);
    };
    each_token(pool_, tokens_, [&](int64_t t) {
        float *sum = nullptr, *shared = branch_.get() + t * hidden;
        for (int64_t i = t * chosen; i < (t + 1) * chosen; i++) {
            float* row = routing_.out.get() + routing_.rows[size_t(i)] * hidden;
            kernels_->scale(row, hidden, routing_.weights[size_t(i)]);
            if (sum) kernels_->add(sum, row, hidden);
            else sum = row;
        }
        norm(layer.experts_out_norm, sum);
        if (layer.shared_gate.rows) {
            norm(layer.shared_out_norm, shared);
            if (layer.shared_router.rows) kernels_->scale(shared, hidden, sigmoid(routing_.shared_scores.get()[t]));
            kernels_->add(sum, shared, hidden);
        }
        norm(layer.mlp_out_norm, sum);
        kernels_->add(states_.get() + t * hidden, sum, hidden);
    });
}

}  // namespace sk
