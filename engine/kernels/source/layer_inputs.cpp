// Inputs that every layer has besides the output of the one before (the per-layer embeddings of Gemma 3n and 4): an
// embedding of the token, and a projection of the first layer's input.
#include <string.h>

#include "decoder.h"
#include "packing.h"
#include "pieces.h"

namespace sk {

// The inputs of all layers, of all tokens.
void Decoder::find_inputs(const sk_batch& batch) {
    const int64_t size = model_.inputs, width = model_.layer_count * size, hidden = model_.hidden;
    enter_plainly(model_.inputs_projection);
    const Inputs entered = normed_.inputs();
    each_panels(pool_, panels(width), [&](int64_t first, int64_t last, int) {
        kernels_->linear(model_.inputs_projection, entered, first, last, 0, tokens_, nullptr, false,
                         inputs_.get() + first * kPanel, width);
    });
    each_token(pool_, tokens_, [&](int64_t t) {
        std::vector<float> embedding(size_t(width), 0.0f);
        float* inputs = inputs_.get() + t * width;
        unpack_row(model_.inputs_embedding, batch.ids[t], embedding.data());
        kernels_->scale(embedding.data(), width, model_.inputs_scale);
        for (int64_t i = 0; i < width; i += size)  // a factor before a norm is one of its epsilon
            kernels_->norm(inputs + i, model_.inputs_norm, model_.epsilon * float(hidden), size, inputs + i);
        kernels_->add(inputs, embedding.data(), width);
    });
}

// Adds what a layer makes of its inputs.
void Decoder::add_input(const sk_layer& layer, int32_t index) {
    const int64_t size = model_.inputs;
    enter_plainly(layer.input_gate);
    hidden_.reserve(tokens_, size);
    const Inputs entered = normed_.inputs();
    float* gates = gates_.reserve(tokens_ * size);
    each_panels(pool_, panels(size), [&](int64_t first, int64_t last, int) {
        kernels_->linear(layer.input_gate, entered, first, last, 0, tokens_, nullptr, false, gates + first * kPanel, size);
    });
    each_token(pool_, tokens_, [&](int64_t t) {
        const float* inputs = inputs_.get() + (t * model_.layer_count + index) * size;
        kernels_->gate(model_.activation, gates + t * size, inputs, size, hidden_.token(t));
        if (wants_codes(layer.input_projection)) hidden_.quantize(*kernels_, t);
    });
    add_projection(layer.input_projection, nullptr, hidden_, layer.input_norm);
}

// The states as they are, as activations for a matrix.
void Decoder::enter_plainly(const sk_matrix& matrix) {
    each_token(pool_, tokens_, [&](int64_t t) {
        memcpy(normed_.token(t), states_.get() + t * model_.hidden, size_t(model_.hidden) * sizeof(float));
        if (wants_codes(matrix)) normed_.quantize(*kernels_, t);
    });
}

}  // namespace sk
