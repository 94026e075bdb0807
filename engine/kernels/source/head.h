// A draft head: one layer on the target's hidden states and the embeddings of the tokens that followed.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "activations.h"
#include "api.h"
#include "decoder.h"

namespace sk {

class Head {
   public:
    // Copies what `model` points to, but neither weights, norms nor tables.
    explicit Head(const sk_head_model& model);

    void attach(int32_t slots, int32_t columns, float* states, uint16_t* keys, uint16_t* values);

    // What is wrong with the tokens to be absorbed, or nothing.
    std::string fault(int64_t count, const int32_t* slots, const int32_t* columns) const;

    // What is wrong with the step, or nothing.
    std::string fault(const sk_head_step& step) const;

    void absorb(int64_t count, const int32_t* slots, const int32_t* columns, const float* tapped, int32_t threads);
    void run(const sk_head_step& step);

   private:
    float* state(int32_t slot, int32_t column) const {
        return states_ + (int64_t(slot) * columns_ + column) * layer_.model().hidden;
    }
    void norm_plainly(const float* x, float* y) const;
    void enter(const sk_head_step& step);

    Decoder layer_;
    sk_matrix fuse_, again_, token_;
    int64_t tap_count_;
    int64_t slots_ = 0, columns_ = 0;
    float* states_ = nullptr;

    const Kernels* kernels_ = nullptr;
    ThreadPool& pool_ = ThreadPool::instance();
    std::vector<float> ones_;  // the weight of norms without one
    int64_t outcomes_ = 0;     // judged tokens of the last step
    Buffer<float> entered_, fused_;
    Activations tapped_, embedded_, before_;
};

}  // namespace sk
