// A whole decoder: all layers of a pass in one call.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "activations.h"
#include "api.h"
#include "kernels.h"
#include "thread_pool.h"

namespace sk {

// Tokens of a row that one piece of attention takes, and of a pass that one piece of the MLP takes at a time.
constexpr int64_t kAttentionTokens = 16, kMlpTokens = 64;

// Adjacent tokens of a pass in the same slot.
struct Row {
    int64_t first, count;
    int64_t blocks;  // of keys, up to its last position
    int32_t own_first, own_last;  // columns between which its tokens and their ancestors lie
};

// Some tokens of a row, one key head, some blocks of keys.
struct AttentionPiece {
    int64_t row, first, count, key_head, first_block, last_block;
};

class Decoder {
   public:
    // Copies what `model` points to, but neither weights, norms nor tables.
    explicit Decoder(const sk_model& model);

    void attach(int32_t slots, int32_t columns, uint16_t* const* keys, uint16_t* const* values);

    // Floats of a recurrent layer's state of a slot, and of what one token adds to it.
    struct StateSizes {
        int64_t channels;        // of the convolution; its inputs begin an update
        int64_t keys, values;    // all heads; a delta net's update has keys, deltas and decays after the inputs
        int64_t state, update;
    };
    StateSizes state_sizes() const;
    void attach_states(float* states, float* updates, int32_t kept);

    // What is wrong with the batch, or nothing.
    std::string fault(const sk_batch& batch) const;

    // Runs a batch without a fault. The caller holds the pool's mutex: one pass at a time in a process.
    void pass(const sk_batch& batch);

    const sk_model& model() const { return model_; }

    // What the output layer has read of judged token i in the last pass, [hidden].
    const float* judged(int64_t i) { return judged_.token(i); }

   private:
    void plan(const sk_batch& batch);
    void plan_states(int64_t width);
    void embed(const sk_batch& batch);
    void layer(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void project(const sk_layer& layer);
    void rotate_and_store(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void attend(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void attention_out(const sk_layer& layer);
    void short_convolution(const sk_layer& layer, int64_t place, const sk_batch& batch);
    void delta_net(const sk_layer& layer, int64_t place, const sk_batch& batch);
    void delta_inputs(const sk_layer& layer, int64_t place, int64_t t, const sk_batch& batch);
    void convolve(const sk_layer& layer, int64_t place, const sk_batch& batch, int64_t t, int64_t stride, bool with_silu,
                  float* out);
    float* update(int64_t place, int32_t slot, int64_t position);
    void keep_inputs(int64_t place, const sk_batch& batch, int64_t stride);
    void mlp(const sk_layer& layer);
    void add_projection(const sk_matrix& matrix, const float* bias, const Activations& from, const float* out_norm);
    void tap(const sk_batch& batch, int32_t depth, const float* states);
    void judge(const sk_batch& batch);
    void find_best(const sk_batch& batch);

    sk_model model_;
    std::vector<sk_layer> layers_;
    std::vector<sk_rope> ropes_;
    std::vector<uint16_t*> keys_, values_;
    int64_t slots_ = 0, columns_ = 0;
    std::vector<int64_t> places_;  // of every layer among the recurrent ones
    int64_t recurrent_ = 0, kept_ = 0;
    float *stored_ = nullptr, *updates_ = nullptr;

    const Kernels* kernels_ = nullptr;
    ThreadPool& pool_ = ThreadPool::instance();
    int64_t tokens_ = 0;
    std::vector<Row> rows_;
    std::vector<int64_t> row_of_;  // of every token, where layers are recurrent
    std::vector<AttentionPiece> pieces_;
    bool split_keys_ = false;
    int64_t most_blocks_ = 0, most_own_ = 0;
    Buffer<float> states_, queries_, keys_new_, values_new_, branch_, partial_, gates_, convolved_, factors_, units_;
    Activations normed_, attended_, mixed_, hidden_, judged_;
    std::vector<Buffer<float>> scratch_;
};

}  // namespace sk
