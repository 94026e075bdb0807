// A network that drafts from the target's hidden states: a head, or a block drafter.
#pragma once
#include <stdint.h>

#include <memory>
#include <string>
#include <vector>

#include "places.h"
#include "tree_drafter.h"

namespace sk {

class StateDrafter : public TreeDrafter {
   public:
    // As `sk_head_attach`.
    virtual void attach(const sk_tables& tables, float* states, const sk_cache* caches) = 0;

    // What is wrong with hidden states to be read, or nothing.
    std::string fault(int64_t count, const sk_read* read) const;

    void absorb(int64_t count, const sk_read* read, int32_t threads);

    // The same of a round's accepted tokens; what is wrong, or nothing.
    std::string absorb(const sk_round& round);

    // The same before the next round.
    std::string follow(const sk_round& round, const std::vector<std::vector<int64_t>>&) override { return absorb(round); }

    // As `sk_head_run`; what is wrong, or nothing.
    virtual std::string run(const sk_head_step&) { return "a block drafter has no single steps"; }

   protected:
    // `model` is the network without `fuse`, which reads hidden states of `tap_count` depths, and without other matrices.
    StateDrafter(const sk_model& model, const sk_matrix& fuse, int64_t tap_count, const std::vector<sk_matrix>& others);

    void start(int32_t threads);
    std::string prepare(const sk_growing& growing) override;

    // Lets the weights of a draft's first step be prefetched after the target's next pass, which leaves nothing of them in
    // the caches.
    void will_fetch() { pool_.will_fetch(weights_); }

    // What `fuse` reads of a token's hidden states.
    virtual void enter_fuse(const float* tapped, float* out) const = 0;

    // Stores what `fuse` has made of the hidden states of these tokens, [tokens, hidden], which it may change.
    virtual void store(float* fused, const Places& tokens) = 0;

    Decoder layers_;
    int64_t tap_count_;
    sk_tables tables_{};
    const Kernels* kernels_ = nullptr;

   private:
    void take_in(int64_t count, const sk_read* read);
    float* fuse(const std::vector<const float*>& from);

    sk_matrix fuse_;
    std::shared_ptr<Fetch> weights_;
    Buffer<float> fused_;
    Activations tapped_;
};

}  // namespace sk
