#include "sampling.h"

#include <algorithm>
#include <vector>

#include "penalties.h"
#include "rng.h"
#include "thread_pool.h"
#include "variants.h"

namespace sk {

namespace {

// Logit of a token that may not follow: it has no weight at any temperature, and differences from it are finite.
constexpr float kForbidden = -1e30f;

// What one thread needs.
struct Scratch {
    Distribution p, q;
    Buffer<float> saved;
    std::vector<int32_t> children;
    Penalties penalties;
    std::vector<int64_t> tokens;  // accepted ones
    Buffer<float> blocks;
};

// Runs body(index, scratch) for every index, on all threads where there are several.
template <typename Body>
void each_with_scratch(int64_t count, int32_t threads, Body body) {
    ThreadPool& pool = ThreadPool::instance();
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.start(threads);
    static std::vector<Scratch>& scratch = *new std::vector<Scratch>;  // shared, as the pool is
    while (int(scratch.size()) < pool.threads()) scratch.emplace_back();
    auto piece = [&](int64_t i, int thread) { body(i, scratch[size_t(thread)]); };
    if (count == 1)
        piece(0, 0);
    else
        pool.each(count, piece);
}

// Judges one row: the residual p and the remaining q of a position, while the tokens offered for it are judged.
class Judge {
   public:
    Judge(const Kernels& kernels, const sk_rows& all, sk_row& row, Scratch& scratch)
        : kernels_(kernels), all_(all), row_(row), scratch_(scratch), p_(scratch.p), q_(scratch.q), saved_(scratch.saved), children_(scratch.children) {
        scratch.tokens.clear();
    }

    void run() {
        row_.accepted = row_.tested = row_.positions = 0;
        row_.last = -1;
        if (!row_.q) return follow();
        branches_ = false;
        for (int64_t i = 0; i < row_.count; i++)
            for (int64_t k = 0; k < i; k++) branches_ |= parents()[i] == parents()[k];
        for (int32_t node = 0;;) {
            if (!standardise(node)) return;
            const int32_t kept = position(node);
            if (kept == 0) break;
            accept(node = kept);
        }
        row_.last = draw_last();
    }

   private:
    const int64_t* parents() const { return row_.drafted + all_.most; }

    // Accepts drafted tokens that are the target's own: the likeliest, or the tokens that the positions' numbers draw.
    void follow() {
        if (!row_.sampling)
            for (int64_t node = 0; node <= row_.count; node++)
                if (row_.best[node * all_.best_count] < 0) return;
        for (int32_t end = 0, next;; accept(end = next)) {
            row_.last = row_.sampling ? standardise(end) ? draw_last() : -1 : likeliest(end);
            next = own_child(end);
            if (!next) return;
        }
    }

    // The child of a node that is the target's own token, or 0; of a sampled row also p and beta of the position.
    int32_t own_child(int32_t node) {
        int32_t kept = 0;
        double offered = 0;
        for (int64_t i = node; i < row_.count; i++) {
            if (parents()[i] != node) continue;
            const int64_t token = row_.drafted[i];
            if (row_.sampling && row_.last >= 0) {
                const double p = p_.share(token), left = 1 - offered;
                if (!kept) {
                    row_.p[row_.tested] = left > 0 ? float(std::min(p / left, 1.0)) : 0.0f;
                    row_.q_of[row_.tested++] = 1;
                }
                if (offered == 0) row_.positions = row_.accepted + 1;
                row_.beta[row_.accepted] = float(offered = std::min(offered + p, 1.0));
            }
            if (!kept && token == row_.last) kept = int32_t(i + 1);
        }
        return kept;
    }

    // The target's distribution after a node; false if a logit is not a number.
    bool standardise(int32_t node) {
        return p_.standardise(kernels_, adjusted(node), all_.vocabulary, *row_.sampling, row_.seed, next_position());
    }

    bool allows(int32_t node, int64_t token) const {
        return row_.allowed[node * ((all_.vocabulary + 31) / 32) + token / 32] >> token % 32 & 1;
    }

    // Masks logits, by words of 32 tokens: most words allow all of theirs or none.
    void forbid(int32_t node, float* logits) const {
        const int64_t words = (all_.vocabulary + 31) / 32;
        for (int64_t w = 0; w < words; w++) {
            const uint32_t bits = uint32_t(row_.allowed[node * words + w]);
            const int64_t first = 32 * w, end = std::min(first + 32, all_.vocabulary);
            if (bits == 0) std::fill(logits + first, logits + end, kForbidden);
            if (bits == 0 || bits == ~uint32_t(0)) continue;
            for (int64_t token = first; token < end; token++)
                if (!(bits >> (token - first) & 1)) logits[token] = kForbidden;
        }
    }

    // Of the token after the accepted ones, in the text.
    int64_t next_position() const { return row_.start + 1 + row_.accepted; }

    int32_t draw_last() const {
        return int32_t(p_.draw(uniform(row_.seed, uint64_t(next_position()), uint64_t(all_.last_stream), 0)));
    }

    void accept(int32_t node) {
        row_.path[row_.accepted++] = node;
        scratch_.tokens.push_back(row_.drafted[node - 1]);
    }

    // The logits after a node, to be asked for once: mask, bias and penalties are applied to them.
    const float* adjusted(int32_t node) {
        float* logits = row_.logits + node * all_.vocabulary;
        if (row_.allowed) forbid(node, logits);
        if (row_.penalties) scratch_.penalties.apply(*row_.penalties, scratch_.tokens, {logits, all_.vocabulary});
        return logits;
    }

    int32_t likeliest(int32_t node) {
        if (!row_.penalties && !row_.allowed) return row_.best[node * all_.best_count];
        int32_t found;
        float* blocks = scratch_.blocks.reserve(all_.vocabulary / kBestBlock + 1);
        kernels_.best(adjusted(node), all_.vocabulary, 1, blocks, &found, nullptr);
        return found;
    }

    // The accepted child of a node, or 0; beta covers all children.
    int32_t position(int32_t node) {
        children_.clear();
        for (int64_t i = node; i < row_.count; i++)
            if (parents()[i] == node) children_.push_back(int32_t(i + 1));
        if (children_.empty()) return 0;
        row_.positions++;
        q_.assign(kernels_, row_.q + node * all_.support, all_.support);
        if (row_.allowed) {
            for (int64_t i = 0; i < all_.support; i++)
                if (!allows(node, all_.tokens ? all_.tokens[i] : i)) q_.weights()[i] = 0;
            q_.sum_again();
        }
        // A draft that was drawn from what is not a number is refused, and leaves p as it is.
        double missed = !branches_ && q_.total() > 0 ? 1 - overlap() : 1;
        int32_t kept = 0;
        for (size_t rank = 0; rank < children_.size(); rank++) {
            const int64_t token = row_.drafted[children_[rank] - 1], place = all_.places ? all_.places[token] : token;
            const float p = p_.share(token), q = q_.total() > 0 ? q_.share(place) : 0.0f;
            if (!kept) {
                row_.p[row_.tested] = p;
                row_.q_of[row_.tested++] = q;
            }
            // If q had fewer tokens than the tree has places, the remaining places hold none.
            if (!(q > 0)) continue;
            if (!kept && draw(rank) * double(q) < double(p)) kept = children_[rank];
            if (branches_) missed *= 1 - std::min(1.0, double(p) / double(q));
            if (!kept || rank + 1 < children_.size()) refuse(place);
        }
        row_.beta[row_.accepted] = float(1 - missed);
        return kept;
    }

    // Uniform draw of a child of the current position.
    double draw(size_t rank) const {
        const uint64_t index = uint64_t(row_.accepted) * uint64_t(all_.branches) + rank;
        return uniform(row_.seed, row_.number, uint64_t(all_.accept_stream), index);
    }

    // Sum of min(p, q).
    double overlap() {
        const double p = 1 / p_.total(), q = 1 / q_.total();
        double sum = 0;
        for (int64_t i = 0; i < all_.support; i++)
            sum += std::min(p_.weights()[all_.tokens ? all_.tokens[i] : i] * p, q_.weights()[i] * q);
        return sum;
    }

    // p becomes max(0, p - q), and q loses the token. Where rounding leaves nothing of p, it stays as it is.
    void refuse(int64_t place) {
        float *p = p_.weights(), *q = q_.weights(), *saved = saved_.reserve(all_.support);
        const float factor = float(p_.total() / q_.total());
        for (int64_t i = 0; i < all_.support; i++) {
            float& weight = p[all_.tokens ? all_.tokens[i] : i];
            saved[i] = weight;
            weight = std::max(weight - factor * q[i], 0.0f);
        }
        p_.sum_again();
        if (!(p_.total() > 0)) {
            for (int64_t i = 0; i < all_.support; i++) p[all_.tokens ? all_.tokens[i] : i] = saved[i];
            p_.sum_again();
        }
        q[place] = 0;
        q_.sum_again(place);
    }

    const Kernels& kernels_;
    const sk_rows& all_;
    sk_row& row_;
    Scratch& scratch_;
    Distribution &p_, &q_;
    Buffer<float>& saved_;
    std::vector<int32_t>& children_;
    bool branches_ = false;
};

}  // namespace

std::string drafting_fault(const sk_rows& rows) {
    for (int64_t r = 0; r < rows.count; r++) {
        const sk_row& row = rows.rows[r];
        const std::string which = " of row " + std::to_string(r);
        if (row.count < 0 || row.count > rows.most) return "there is no room for the draft" + which;
        for (int64_t i = 0; i < row.count; i++) {
            const int64_t token = row.drafted[i], parent = row.drafted[rows.most + i];
            if (token < 0 || token >= rows.vocabulary) return "a token" + which + " is not in the vocabulary";
            if (parent < 0 || parent > i) return "a token" + which + " comes before its parent";
        }
    }
    return "";
}

void judge(const sk_rows& rows) {
    const Kernels& kernel = kernels();
    each_with_scratch(rows.count, rows.threads, [&](int64_t i, Scratch& scratch) {
        if (!rows.rows[i].held) Judge(kernel, rows, rows.rows[i], scratch).run();
    });
}

}  // namespace sk
