// A draft head: one layer on the target's hidden states and the embeddings of the tokens that followed.
#pragma once
#include <stdint.h>

#include <memory>
#include <string>
#include <vector>

#include "activations.h"
#include "api.h"
#include "decoder.h"
#include "tree_drafter.h"

namespace sk {

class Head : public TreeDrafter {
   public:
    // Copies what `model` points to, but neither weights, norms nor tables.
    explicit Head(const sk_head_model& model);

    void attach(const sk_tables& tables, float* states, const sk_cache& cache);

    // What is wrong with tokens to be absorbed, or nothing.
    std::string fault(int64_t count, const sk_read* read) const;

    // What is wrong with the step, or nothing.
    std::string fault(const sk_head_step& step) const;

    void absorb(int64_t count, const sk_read* read, int32_t threads);

    // The same of a round's accepted tokens; what is wrong, or nothing.
    std::string absorb(const sk_round& round);

    void run(const sk_head_step& step);

    // The same before the next round.
    std::string follow(const sk_round& round, const std::vector<std::vector<int64_t>>&) override { return absorb(round); }

   private:
    std::string prepare(const sk_growing& growing) override;
    std::string score(const sk_head_step& step) override;
    void start(int32_t threads);
    void take_in(int64_t count, const sk_read* read);
    void fuse(std::vector<const float*>& from, std::vector<float*>& to);
    void step(const sk_head_step& step);
    float* state(int32_t slot, int32_t column) const {
        return states_ + (block_of(tables_, slot, column) * kCacheBlock + column % kCacheBlock) * layer_.model().hidden;
    }
    void norm_plainly(const float* x, float* y) const;
    void enter(const sk_head_step& step);

    Decoder layer_;
    std::shared_ptr<Fetch> weights_;  // of a draft's first step
    sk_matrix fuse_, again_, token_;
    int64_t tap_count_;
    sk_tables tables_{};
    float* states_ = nullptr;

    const Kernels* kernels_ = nullptr;
    std::vector<float> ones_;  // the weight of norms without one
    int64_t outcomes_ = 0;     // judged tokens of the last step
    Buffer<float> entered_, fused_;
    Activations tapped_, embedded_, before_;
};

}  // namespace sk
