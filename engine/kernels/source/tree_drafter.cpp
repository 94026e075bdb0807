#include "tree_drafter.h"

#include <algorithm>

#include "places.h"
#include "rng.h"
#include "variants.h"

namespace sk {

namespace {

// Places that the rows that take draft steps have to read, of each the last one judged; they count as read then.
Places unread(std::vector<Growth>& growths) {
    Places places;
    for (Growth& growth : growths) {
        if (!growth.needs_steps()) continue;
        growth.start(int64_t(places.judged.size()));
        sk_growth& row = growth.row();
        for (int32_t at = row.begin; at < row.end; at++) places.add(row.ids[at - row.begin], row.slot, at, at, at);
        row.begin = row.end;
        places.judge();
    }
    return places;
}

// The drafted tokens that rows expand.
Places expanded(std::vector<Growth>& growths) {
    Places places;
    for (Growth& growth : growths) {
        if (growth.over()) continue;
        const sk_growth& row = growth.row();
        growth.expand(int64_t(places.ids.size()));
        const int32_t before = row.end - 1;
        for (const Promising& each : growth.promising()) {
            const std::vector<int32_t> path = growth.columns_before(each.place);
            for (int32_t column : path) places.ancestors.push_back(before + column);
            places.add(growth.token(each.place), row.slot, row.end + int32_t(path.size()),
                       before + growth.column(each.place), row.end, int32_t(each.source));
            places.judge();
        }
    }
    return places;
}

}  // namespace

std::string TreeDrafter::grow(sk_growing& all) {
    std::lock_guard<std::mutex> lock(pool_.mutex);
    pool_.start(all.threads);
    size_ = std::min<int64_t>(network_.model().vocabulary, all.vocabulary);
    if (size_ < all.branches) return "the draft vocabulary has fewer tokens than may follow one";
    std::vector<Growth> growths = growths_from_text(all);
    for (const Growth& growth : growths)
        if (growth.needs_steps() && growth.row().begin >= growth.row().end) return "a row has no place to read";
    std::string wrong = prepare(all);
    all.steps = 0;
    for (Places places = unread(growths); wrong.empty() && !places.ids.empty(); places = expanded(growths)) {
        const int64_t judged = int64_t(places.judged.size());
        float* logits = logits_.reserve(judged * network_.model().vocabulary);
        wrong = score({places.batch(logits, nullptr, 0, all.threads), places.sources.data()});
        if (!wrong.empty()) break;
        penalise(growths, all);
        find_best(judged, all);
        correct(all.branches, shares_.get());
        all.steps++;
        draw(growths, all);
        for (Growth& growth : growths) growth.find_promising();
        choose_expanded(growths);
    }
    for (Growth& growth : growths) growth.finish();
    return wrong;
}

// Applies the rows' bias and penalties to what their steps have scored.
void TreeDrafter::penalise(const std::vector<Growth>& growths, const sk_growing& all) {
    for (const Growth& growth : growths)
        if (const sk_penalties* penalties = growth.row().penalties)
            for (const GrownNode& node : growth.nodes())
                penalties_.apply(*penalties, growth.path(node.place),
                                 {logits(node.source), all.known ? all.vocabulary : size_, all.known, all.places});
}

// The likeliest tokens after all judged places, and their probabilities.
void TreeDrafter::find_best(int64_t count, const sk_growing& all) {
    int32_t* best = best_.reserve(count * all.branches);
    float* shares = shares_.reserve(count * all.branches);
    while (int(scratch_.size()) < pool_.threads()) scratch_.emplace_back();
    const Kernels& kernel = kernels();
    auto piece = [&](int64_t i, int thread) {
        kernel.best(logits(i), size_, all.branches, scratch_[size_t(thread)].reserve(size_ / kBestBlock + 1),
                    best + i * all.branches, shares + i * all.branches);
    };
    pool_.each(count, piece);
}

// Adds children to all scored nodes. The distributions that they are drawn from are computed together; the
// draws of a row depend on how many tokens it has by then.
void TreeDrafter::draw(std::vector<Growth>& growths, const sk_growing& all) {
    std::vector<std::pair<const Growth*, const GrownNode*>> nodes;
    for (Growth& growth : growths) {
        int32_t before = -1;
        for (const Offered& each : growth.offers(shares_.get())) {
            if (growth.drawn() && each.node.place != before) nodes.emplace_back(&growth, &each.node);
            before = each.node.place;
        }
    }
    while (drawn_from_.size() < nodes.size()) drawn_from_.emplace_back();
    const Kernels& kernel = kernels();
    auto piece = [&](int64_t i, int) {
        const sk_growth& row = nodes[size_t(i)].first->row();
        const GrownNode& node = *nodes[size_t(i)].second;
        drawn_from_[size_t(i)].standardise_into(kernel, logits(node.source), size_, *row.sampling, row.seed,
                                                row.end + all.first + nodes[size_t(i)].first->depth(),
                                                row.q + node.place * size_);
    };
    pool_.each(int64_t(nodes.size()), piece);
    size_t next = 0;
    for (Growth& growth : growths) {
        int32_t before = -1;
        const sk_growth& row = growth.row();
        for (const Offered& each : growth.offered()) {
            int64_t place = best_.get()[each.node.source * all.branches + each.rank];
            if (growth.drawn()) {
                if (each.node.place != before) next++;
                place = drawn_from_[next - 1].take(
                    uniform(row.seed, row.number, uint64_t(all.stream), uint64_t(growth.count())));
            }
            before = each.node.place;
            if (place >= 0) growth.add(each, all.known ? all.known[place] : place);
        }
    }
}

}  // namespace sk
