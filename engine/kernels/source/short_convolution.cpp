// Short convolutions in the place of attention (LFM2): y = gate · convolution(gate · x), each channel by itself.
//
// What they know of the text are their inputs at the last taps - 1 positions. The ring has those of more positions, so
// that a row can continue from an earlier length: rejected tokens are overwritten.
#include <string.h>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

constexpr int64_t kMostTaps = 16;

}  // namespace

void Decoder::attach_rings(int32_t ring, float* const* rings) {
    ring_ = ring;
    rings_.assign(rings, rings + model_.layer_count);
}

void Decoder::short_convolution(const sk_layer& layer, int32_t index, const sk_batch& batch) {
    const int64_t hidden = model_.hidden, taps = model_.taps;
    const bool codes = is_quantized(layer.output.format);
    std::vector<float> zeros(size_t(hidden), 0.0f);
    const auto projected = [&](int64_t t) { return queries_.get() + t * 3 * hidden; };
    const auto stored = [&](int64_t t, int64_t position) {
        return rings_[size_t(index)] + (batch.slots[t] * ring_ + position % ring_) * hidden;
    };
    each_token(pool_, tokens_, [&](int64_t t) {
        kernels_->gate(SK_IDENTITY, projected(t), projected(t) + 2 * hidden, hidden, projected(t));
    });
    each_token(pool_, tokens_, [&](int64_t t) {
        const float* inputs[kMostTaps];
        for (int64_t j = 0; j < taps; j++) {
            const int64_t back = taps - 1 - j, position = batch.positions[t] - back;
            const bool own = back <= t && batch.slots[t - back] == batch.slots[t];
            inputs[j] = own ? projected(t - back) : position < 0 ? zeros.data() : stored(t, position);
        }
        float* out = convolved_.token(t);
        kernels_->convolve(inputs, layer.convolution, layer.convolution_bias, taps, hidden, out);
        kernels_->gate(SK_IDENTITY, out, projected(t) + hidden, hidden, out);
        if (codes) convolved_.quantize(*kernels_, t);
    });
    for (const Row& row : rows_)
        for (int64_t t = row.first + std::max<int64_t>(0, row.count - ring_); t < row.first + row.count; t++)
            memcpy(stored(t, batch.positions[t]), projected(t), size_t(hidden) * sizeof(float));
    add_projection(layer.output, layer.output_bias, convolved_, nullptr);
}

}  // namespace sk
