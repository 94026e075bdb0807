// Mixtures of experts: the MLP of a token is the weighted sum of the few experts that its router chooses.
//
// An expert computes all tokens of the pass that chose it, and its weights are read once. A token adds its experts in the
// order of their probabilities, so its bits do not depend on the choices of other tokens.
#include <algorithm>
#include <limits>

#include "decoder.h"
#include "pieces.h"

namespace sk {

void Decoder::experts(const sk_layer& layer) {
    enter_mlp(layer);
    route(layer);
    sort_by_expert();
    run_experts(layer);
    add_experts(layer);
}

// The likeliest experts of every token by the softmax of its scores, and their weights.
void Decoder::route(const sk_layer& layer) {
    const int64_t experts = model_.experts, chosen = model_.experts_per_token;
    float* scores = routing_.scores.reserve(tokens_ * experts);
    routing_.chosen.resize(size_t(tokens_ * chosen));
    routing_.weights.resize(size_t(tokens_ * chosen));
    const Inputs inputs = normed_.inputs();
    each_panels(pool_, panels(experts), [&](int64_t first, int64_t last, int) {
        kernels_->linear(layer.router, inputs, first, last, 0, tokens_, layer.router_bias, false,
                         scores + first * kPanel, experts);
    });
    each_token(pool_, tokens_, [&](int64_t t) {
        float scratch[kMostExperts / kBestBlock + 1];
        int32_t* places = routing_.chosen.data() + t * chosen;
        float* weights = routing_.weights.data() + t * chosen;
        kernels_->best(scores + t * experts, experts, chosen, scratch, places, weights);
        float total = 0.0f;
        for (int64_t j = 0; j < chosen; j++) total += weights[j];
        for (int64_t j = 0; j < chosen; j++) {
            if (places[j] < 0) {  // scores that are not numbers make the output one that is not
                places[j] = int32_t(j);
                weights[j] = std::numeric_limits<float>::quiet_NaN();
            } else if (model_.normalise_experts) {
                weights[j] /= total;
            }
        }
    });
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

// The outputs of all rows, [rows, hidden].
void Decoder::run_experts(const sk_layer& layer) {
    const int64_t rows = int64_t(routing_.rows.size()), runs = int64_t(routing_.runs.size());
    const int64_t size = model_.expert_size, groups = (size + kGroup - 1) / kGroup, wide = panels(model_.hidden);
    routing_.hidden.reserve(rows, size);
    float* out = routing_.out.reserve(rows * model_.hidden);
    const Inputs inputs = routing_.in.inputs(), inner = routing_.hidden.inputs();
    each_panels(pool_, runs * groups, [&](int64_t first, int64_t last, int thread) {
        for (int64_t i = first, end; i < last; i = end) {
            const Routing::Run& run = routing_.runs[size_t(i / groups)];
            end = std::min(last, (i / groups + 1) * groups);
            const int64_t group = i % groups;
            gate_groups(layer, inputs, {run.expert, size, group, group + end - i, run.first, run.last},
                        scratch_[size_t(thread)].get(), routing_.hidden);
        }
    });
    each_panels(pool_, runs * wide, [&](int64_t first, int64_t last, int) {
        for (int64_t i = first, end; i < last; i = end) {
            const Routing::Run& run = routing_.runs[size_t(i / wide)];
            end = std::min(last, (i / wide + 1) * wide);
            const int64_t panel = run.expert * wide + i % wide;
            kernels_->linear(layer.down, inner, panel, panel + end - i, run.first, run.last, layer.down_bias, false,
                             out + run.first * model_.hidden + i % wide * kPanel, model_.hidden);
        }
    });
}

// states += norm(weighted sum of the experts' outputs); the norm is optional.
void Decoder::add_experts(const sk_layer& layer) {
    const int64_t chosen = model_.experts_per_token, hidden = model_.hidden;
    each_token(pool_, tokens_, [&](int64_t t) {
        float* sum = nullptr;
        for (int64_t i = t * chosen; i < (t + 1) * chosen; i++) {
            float* row = routing_.out.get() + routing_.rows[size_t(i)] * hidden;
            kernels_->scale(row, hidden, routing_.weights[size_t(i)]);
            if (sum) kernels_->add(sum, row, hidden);
            else sum = row;
        }
        if (layer.mlp_out_norm) kernels_->norm(sum, layer.mlp_out_norm, model_.epsilon, hidden, sum);
        kernels_->add(states_.get() + t * hidden, sum, hidden);
    });
}

}  // namespace sk
