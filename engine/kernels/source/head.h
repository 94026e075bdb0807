// A draft head: one layer on the target's hidden states and the embeddings of the tokens that followed.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "state_drafter.h"

namespace sk {

class Head : public StateDrafter {
   public:
    // Copies what `model` points to, but neither weights, norms nor tables.
    explicit Head(const sk_head_model& model);

    void attach(const sk_tables& tables, float* states, const sk_cache* caches) override;

    std::string run(const sk_head_step& step) override;

   private:
    void enter_fuse(const float* tapped, float* out) const override;
    void store(float* fused, const Places& tokens) override;
    std::string score(const sk_head_step& step) override;
    std::string fault(const sk_head_step& step) const;
    float* state(int32_t slot, int32_t column) const {
        return states_ + (block_of(tables_, slot, column) * kCacheBlock + column % kCacheBlock) * layers_.model().hidden;
    }
    void norm_plainly(const float* x, float* y) const;
    void enter(const sk_head_step& step);

    sk_matrix again_, token_;
    float* states_ = nullptr;
    std::vector<float> ones_;  // the weight of norms without one
    int64_t outcomes_ = 0;     // judged tokens of the last step
    Buffer<float> entered_;
    Activations embedded_, before_;
};

}  // namespace sk
