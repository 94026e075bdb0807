// A row's draft tree while it grows; bit-identical to the Python reference.
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

// A candidate for the tree.
struct Offered {
    GrownNode node;  // the parent
    int32_t rank, grade;
    double chance;
};

// A token that is worth expanding.
struct Promising {
    double worth;
    int32_t place;
    double chance;
    int64_t source;  // of its parent
};

class Growth {
   public:
    Growth(const sk_growing& all, sk_growth& row);

    // Drafts what the text continues with, if it repeats and that is expected to pay; else nothing.
    void continue_text();

    // A network drafts: the root's scores are at place `source`.
    void start(int64_t source) { nodes_ = {{0, 1.0, source}}; }
    bool needs_steps() const { return !row_.given && row_.depth > 0 && tokens_.empty(); }

    sk_growth& row() const { return row_; }
    bool drawn() const { return row_.sampling != nullptr; }
    int32_t depth() const { return level_ - 1; }  // of the nodes that `offers` was called for
    int32_t count() const { return int32_t(tokens_.size()); }
    int64_t token(int32_t place) const { return tokens_[size_t(place) - 1]; }
    const std::vector<GrownNode>& nodes() const { return nodes_; }  // that have been scored

    // The drafted tokens up to one; none for the root.
    std::vector<int64_t> path(int32_t place) const;

    // Candidates for the children of all nodes of one depth, from the probabilities [places scored, branches]; chosen
    // before tokens are drawn.
    const std::vector<Offered>& offers(const float* shares);
    const std::vector<Offered>& offered() const { return offered_; }

    // Adds a token; children of a node are added in the order of their ranks.
    void add(const Offered& offered, int64_t token);

    // Finds the tokens added since `offers` that are worth expanding, and the expected gain.
    void find_promising();
    const std::vector<Promising>& promising() const { return promising_; }
    double gain() const { return gain_; }

    // Expands them: their nodes are scored next, from place `source` on.
    void expand(int64_t source);
    void stop() { nodes_.clear(); }
    bool over() const { return nodes_.empty(); }

    // Column of an expanded token after the text, and the columns of the drafted tokens before it.
    int32_t column(int32_t place) const { return columns_[size_t(place)]; }
    std::vector<int32_t> columns_before(int32_t place) const;

    // Writes the tree; of a tree that is not drawn, the most profitable subset.
    void finish();

   private:
    void rank(const GrownNode& node, const float* shares);
    double price(size_t more) const;

    const sk_growing& all_;
    sk_growth& row_;
    bool final_;  // all tokens stay; else the best subset is kept at the end
    double floor_ = 0;
    std::vector<int64_t> tokens_;
    std::vector<int32_t> parents_, grades_;
    std::vector<double> chances_;
    std::vector<int32_t> columns_{0};  // by place; 0 for none
    int32_t expanded_ = 0, required_ = 0, level_ = 0;
    std::vector<GrownNode> nodes_;
    std::vector<Offered> found_, offered_, added_;
    std::vector<Promising> promising_;
    double gain_ = 0;
};

// Of each row, its tree with what its text continues with.
std::vector<Growth> growths_from_text(sk_growing& all);

// Drafts of the text alone.
void grow_from_text(sk_growing& all);

// Decides which rows take one more draft step and stops the others. Repeatable rows decide alone; the cost of a step is
// shared by the rest.
void choose_expanded(std::vector<Growth>& growths);

}  // namespace sk
