// The tokens of a pass, one after the other.
#pragma once
#include <stdint.h>

#include <vector>

#include "api.h"

namespace sk {

struct Places {
    std::vector<int64_t> ids;
    std::vector<int32_t> slots, positions, columns, prefixes, offsets{0}, ancestors, sources, judged;

    void clear() {
        ids.clear();
        for (std::vector<int32_t>* each : {&slots, &positions, &columns, &prefixes, &ancestors, &sources, &judged}) each->clear();
        offsets.assign(1, 0);
    }

    // Its ancestors have been added before; `source` as in `sk_head_step`.
    void add(int64_t id, int32_t slot, int32_t position, int32_t column, int32_t prefix, int32_t source = -1) {
        ids.push_back(id);
        slots.push_back(slot);
        positions.push_back(position);
        columns.push_back(column);
        prefixes.push_back(prefix);
        offsets.push_back(int32_t(ancestors.size()));
        sources.push_back(source);
    }

    // Judges the last one.
    void judge() { judged.push_back(int32_t(ids.size()) - 1); }

    // A pass over them, which writes the scores of the judged ones.
    sk_batch batch(float* logits, int32_t* best, int64_t best_count, int32_t threads) const {
        sk_batch batch{};
        batch.tokens = int64_t(ids.size());
        batch.ids = ids.data();
        batch.slots = slots.data();
        batch.positions = positions.data();
        batch.columns = columns.data();
        batch.prefixes = prefixes.data();
        batch.ancestor_offsets = offsets.data();
        batch.ancestors = ancestors.data();
        batch.judged_count = int64_t(judged.size());
        batch.judged = judged.data();
        batch.logits = logits;
        batch.best = best;
        batch.best_count = best_count;
        batch.threads = threads;
        return batch;
    }
};

}  // namespace sk
