// A row's draft tree while it grows: `engine.drafters.growing.growth` step by step, bit by bit.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "api.h"

namespace sk {

// A token of the tree, or its root, that has been scored.
struct GrownNode {
    int32_t place;  // in the tree; 0 for the root
    double chance;
    int64_t source;  // which of the places scored in the last step
};

// A token to be offered.
struct Offered {
    GrownNode node;  // behind which
    int32_t rank, grade;
    double chance;
};

// A token that is worth going on from.
struct Promising {
    double worth;
    int32_t place;
    double chance;
    int64_t source;  // of the node before it
};

class Growth {
   public:
    // `source` is the first of the places scored.
    Growth(const sk_growing& all, sk_growth& row, int64_t source);

    const sk_growth& row() const { return row_; }
    bool drawn() const { return row_.sampling != nullptr; }
    int32_t count() const { return int32_t(tokens_.size()); }
    int64_t token(int32_t place) const { return tokens_[size_t(place) - 1]; }

    // What to offer behind the nodes of one depth, from the shares [places scored, branches]; settled before it is drawn.
    const std::vector<Offered>& offers(const float* shares);
    const std::vector<Offered>& offered() const { return offered_; }

    // Offers a token; those behind one node come in the order of their ranks.
    void add(const Offered& offered, int64_t token);

    // The tokens added since `offers` that are worth going on from, and what that may gain.
    void find_promising();
    const std::vector<Promising>& promising() const { return promising_; }
    double gain() const { return gain_; }

    // Goes on from them: their nodes are scored next, from place `source` on.
    void go_on(int64_t source);
    void stop() { nodes_.clear(); }
    bool over() const { return nodes_.empty(); }

    // Where the head's memory has a token that is gone on from, and the drafted ones before it.
    int32_t column(int32_t place) const { return columns_[size_t(place)]; }
    std::vector<int32_t> columns_before(int32_t place) const;

    // Writes the tree: of tokens that are not drawn those that pay best together.
    void finish();

   private:
    void rank(const GrownNode& node, const float* shares);
    double price(size_t more) const;

    const sk_growing& all_;
    sk_growth& row_;
    bool final_;  // what is offered stays; else the best of it is kept in the end
    double floor_;
    std::vector<int64_t> tokens_;
    std::vector<int32_t> parents_, grades_;
    std::vector<double> chances_;
    std::vector<int32_t> columns_{0};  // by place; 0 for none
    int32_t gone_on_ = 0, line_ = 0, level_ = 0;
    std::vector<GrownNode> nodes_;
    std::vector<Offered> found_, offered_, added_;
    std::vector<Promising> promising_;
    double gain_ = 0;
};

// Which rows take one more draft step: those that may learn costs share it, the others know only themselves. Those that
// do not stop.
void settle_who_goes_on(std::vector<Growth>& growths);

}  // namespace sk
