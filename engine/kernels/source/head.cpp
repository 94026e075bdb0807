#include "head.h"

#include <algorithm>

#include "packing.h"
#include "pieces.h"

namespace sk {

Head::Head(const sk_head_model& model)
    : StateDrafter(model.layer, model.fuse, model.tap_count, {model.token, model.again}),
      again_(model.again),
      token_(model.token),
      ones_(size_t(model.layer.hidden), 1.0f) {}

void Head::attach(const sk_tables& tables, float* states, const sk_cache* caches) {
    tables_ = tables;
    states_ = states;
    layers_.attach(tables, caches);
}

std::string Head::fault(const sk_head_step& step) const {
    for (int64_t i = 0; i < step.batch.tokens; i++)
        if (step.sources[i] < -1 || step.sources[i] >= outcomes_)
            return "the source of token " + std::to_string(i) + " was not judged in the step before";
    if (step.batch.tap_count || step.batch.entered) return "a head has no taps, and finds itself what its layer reads";
    return layers_.fault(step.batch);
}

// Root mean square 1.
void Head::norm_plainly(const float* x, float* y) const {
    kernels_->norm(x, ones_.data(), layers_.model().epsilon, layers_.model().hidden, y);
}

void Head::enter_fuse(const float* tapped, float* out) const {
    for (int64_t i = 0; i < tap_count_; i++)
        norm_plainly(tapped + i * layers_.model().hidden, out + i * layers_.model().hidden);
}

// As the states of the tokens.
void Head::store(float* fused, const Places& tokens) {
    const int64_t hidden = layers_.model().hidden;
    for (size_t t = 0; t < tokens.ids.size(); t++, fused += hidden)
        std::copy(fused, fused + hidden, state(tokens.slots[t], tokens.columns[t]));
}

// What the layer reads: a state of the target's or of the head's own making, and the token's embedding.
void Head::enter(const sk_head_step& step) {
    const int64_t count = step.batch.tokens, hidden = layers_.model().hidden;
    embedded_.reserve(count, hidden);
    before_.reserve(count, hidden);
    float* entered = entered_.reserve(count * hidden);
    bool drafted = false;
    for (int64_t t = 0; t < count; t++) drafted |= step.sources[t] >= 0;
    each_token(pool_, count, [&](int64_t t) {
        float* embedding = embedded_.token(t);
        unpack_row(layers_.model().embedding, step.batch.ids[t], embedding);
        norm_plainly(embedding, embedding);
        if (is_quantized(token_.format)) embedded_.quantize(*kernels_, t);
        if (!drafted) return;
        const float* outcome = layers_.judged(std::max(step.sources[t], 0));
        std::copy(outcome, outcome + hidden, before_.token(t));
        if (is_quantized(again_.format)) before_.quantize(*kernels_, t);
    });
    const Inputs embedded = embedded_.inputs(), before = before_.inputs();
    each_panels(pool_, panels(hidden), [&](int64_t from, int64_t to, int) {
        float* out = entered + from * kPanel;
        if (drafted) kernels_->linear(again_, before, from, to, 0, count, nullptr, false, out, hidden);
        for (int64_t t = 0; t < count; t++)
            if (step.sources[t] < 0) {
                const float* known = state(step.batch.slots[t], step.batch.columns[t]) + from * kPanel;
                std::copy(known, known + (to - from) * kPanel, out + t * hidden);
            }
        kernels_->linear(token_, embedded, from, to, 0, count, nullptr, true, out, hidden);
    });
}

std::string Head::run(const sk_head_step& step) {
    std::lock_guard<std::mutex> lock(pool_.mutex);
    start(step.batch.threads);
    return score(step);
}

std::string Head::score(const sk_head_step& step) {
    std::string wrong = fault(step);
    if (!wrong.empty()) return wrong;
    enter(step);
    sk_batch batch = step.batch;
    batch.entered = entered_.get();
    layers_.pass(batch);
    outcomes_ = batch.judged_count;
    will_fetch();
    return "";
}

}  // namespace sk
