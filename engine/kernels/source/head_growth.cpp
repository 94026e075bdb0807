// Drafts of a head: all steps of all rows' trees.
#include <algorithm>

#include "head.h"
#include "pieces.h"
#include "places.h"
#include "rng.h"
#include "variants.h"

namespace sk {

namespace {

// What the rows that the head drafts for have to read, of each the last place judged; it counts as read then.
Places unread(std::vector<Growth>& growths) {
    Places places;
    for (Growth& growth : growths) {
        if (!growth.needs_head()) continue;
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

std::string Head::grow(sk_growing& all) {
    std::lock_guard<std::mutex> lock(pool_.mutex);
    start(all.threads);
    const int64_t size = layer_.model().vocabulary;
    if (size < all.branches) return "the draft vocabulary has fewer tokens than may follow one";
    std::vector<Growth> growths = growths_from_text(all);
    for (const Growth& growth : growths)
        if (growth.needs_head() && growth.row().begin >= growth.row().end) return "a row has no place to read";
    take_in(all.read_count, all.read);
    all.steps = 0;
    for (Places places = unread(growths); !places.ids.empty(); places = expanded(growths)) {
        const int64_t judged = int64_t(places.judged.size());
        sk_head_step next{places.batch(logits_.reserve(judged * size), nullptr, shares_.reserve(judged * all.branches),
                                       all.branches, all.threads),
                          places.sources.data()};
        std::string wrong = fault(next);
        if (!wrong.empty()) return wrong;
        step(next);
        penalise(growths, all);
        next.batch.best = best_.reserve(judged * all.branches);
        layer_.find_best(next.batch);
        all.steps++;
        draw(growths, all);
        for (Growth& growth : growths) growth.find_promising();
        choose_expanded(growths);
    }
    for (Growth& growth : growths) growth.finish();
    // The next pass of the target leaves nothing of these weights in the caches.
    if (all.steps) pool_.will_fetch(weights_);
    return "";
}

// Applies the rows' bias and penalties to what their steps have scored.
void Head::penalise(const std::vector<Growth>& growths, const sk_growing& all) {
    const int64_t size = layer_.model().vocabulary;
    for (const Growth& growth : growths)
        if (const sk_penalties* penalties = growth.row().penalties)
            for (const GrownNode& node : growth.nodes())
                penalties_.apply(*penalties, growth.path(node.place),
                                 {logits_.get() + node.source * size, all.vocabulary, all.known, all.places});
}

// Adds children to all scored nodes. The distributions that they are drawn from are computed together; the
// draws of a row depend on how many tokens it has by then.
void Head::draw(std::vector<Growth>& growths, const sk_growing& all) {
    const int64_t size = layer_.model().vocabulary;
    std::vector<std::pair<const Growth*, const GrownNode*>> nodes;
    for (Growth& growth : growths) {
        int32_t before = -1;
        for (const Offered& each : growth.offers(shares_.get())) {
            if (growth.drawn() && each.node.place != before) nodes.emplace_back(&growth, &each.node);
            before = each.node.place;
        }
    }
    while (drawn_from_.size() < nodes.size()) drawn_from_.emplace_back();
    auto piece = [&](int64_t i, int) {
        const sk_growth& row = nodes[size_t(i)].first->row();
        const GrownNode& node = *nodes[size_t(i)].second;
        drawn_from_[size_t(i)].standardise_into(*kernels_, logits_.get() + node.source * size, size, *row.sampling,
                                                row.seed, row.end + 1 + nodes[size_t(i)].first->depth(),
                                                row.q + node.place * size);
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
            if (place >= 0) growth.add(each, all.known[place]);
        }
    }
}

}  // namespace sk
