// Draft trees that a network grows: all steps of all rows in one call.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "activations.h"
#include "api.h"
#include "decoder.h"
#include "growth.h"
#include "penalties.h"
#include "sampling.h"

struct sk_drafter {
    virtual ~sk_drafter() = default;
};

namespace sk {

class TreeDrafter : public sk_drafter {
   public:
    // `network` has the cache, and scores places.
    explicit TreeDrafter(Decoder& network) : network_(network) {}

    // Drafts trees, step by step, for all rows; what is wrong, or nothing.
    std::string grow(sk_growing& growing);

    // Takes in a round's accepted tokens before the next round of the same call; what is wrong, or nothing. `emitted`
    // are the tokens that each row has emitted.
    virtual std::string follow(const sk_round& round, const std::vector<std::vector<int64_t>>& emitted) = 0;

   protected:
    // What is wrong, or nothing, after what has to be done before the first step.
    virtual std::string prepare(const sk_growing&) { return ""; }

    // Scores the places of a step that is not wrong; what is wrong, or nothing.
    virtual std::string score(const sk_head_step& step) = 0;

    // Changes the probabilities of the likeliest tokens after the judged places, [judged, branches], where the network knows
    // better.
    virtual void correct(int64_t, float*) {}

    ThreadPool& pool_ = ThreadPool::instance();

   private:
    void penalise(const std::vector<Growth>& growths, const sk_growing& growing);
    void find_best(int64_t count, const sk_growing& growing);
    void draw(std::vector<Growth>& growths, const sk_growing& growing);
    float* logits(int64_t source) const { return logits_.get() + source * network_.model().vocabulary; }

    Decoder& network_;
    int64_t size_ = 0;  // tokens that can be drafted, the first of the network's
    Buffer<float> logits_, shares_;
    Buffer<int32_t> best_;
    std::vector<Buffer<float>> scratch_;  // of each thread
    std::vector<Distribution> drawn_from_;
    Penalties penalties_;
};

}  // namespace sk
