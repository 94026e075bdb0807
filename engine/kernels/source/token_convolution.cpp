// Convolutions over the tokens of a slot, before and after a part of a layer (DFlash 2).
#include <algorithm>

#include "decoder.h"
#include "pieces.h"

namespace sk {

// Finds the dynamic weights of both convolutions from the part's input, and applies the first one to it.
void Decoder::convolve_input(const sk_matrix& dynamic, const float* base) {
    float* weights = conv_weights_.reserve(tokens_ * dynamic.rows);
    const Inputs inputs = normed_.inputs();
    each_panels(pool_, panels(dynamic.rows), [&](int64_t first, int64_t last, int) {
        kernels_->linear(dynamic, inputs, first, last, 0, tokens_, nullptr, false, weights + first * kPanel, dynamic.rows);
    });
    convolve_tokens(base, 0);
}

// In place: the part's input, side 0, which is quantised again, or its output, side 1, which is added to the states. Each piece
// has some columns of all tokens, the last one first, as a token needs those before it unchanged.
void Decoder::convolve_tokens(const float* base, int64_t side) {
    const int64_t hidden = model_.hidden, taps = model_.taps, groups = model_.conv_groups, size = hidden / groups;
    float* const x = side ? branch_.get() : normed_.token(0);
    base += side * taps * hidden;
    const auto convolve = [&](int64_t t, int64_t begin, int64_t width) {
        const float* dynamic = conv_weights_.get() + (t * 2 + side) * taps * groups;
        float weights[kMostTaps * kGroup];
        const float* inputs[kMostTaps];
        int64_t tap = 0;
        for (; tap < taps && tap <= t && slots_[t - tap] == slots_[t]; tap++) {
            inputs[tap] = x + (t - tap) * hidden + begin;
            for (int64_t i = 0; i < width;) {
                const int64_t group = (begin + i) / size, end = std::min(width, (group + 1) * size - begin);
                const float factor = dynamic[tap * groups + group];
                for (; i < end; i++) weights[tap * width + i] = base[tap * hidden + begin + i] + factor;
            }
        }
        kernels_->convolve(inputs, weights, nullptr, tap, width, false, x + t * hidden + begin);
    };
    each_panels(pool_, (hidden + kGroup - 1) / kGroup, [&](int64_t first, int64_t last, int) {
        for (int64_t t = tokens_ - 1; t >= 0; t--)
            for (int64_t begin = first * kGroup; begin < std::min(hidden, last * kGroup); begin += kGroup) {
                const int64_t width = std::min(kGroup, hidden - begin);
                convolve(t, begin, width);
                if (side)
                    kernels_->add(states_.get() + t * hidden + begin, x + t * hidden + begin, width);
                else if (width == kGroup)
                    normed_.quantize(*kernels_, t, begin, begin + kGroup);
            }
    });
}

}  // namespace sk
