// Prints a digest of what every variant of the kernels computes on this processor: a line each, name and digest. The
// same numbers come out on every processor, so lines of different machines can be compared.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "api.h"

namespace {

uint64_t state = 1;

uint32_t random_bits() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return uint32_t(state >> 33);
}

float random_float() { return float(int32_t(random_bits() % 20001) - 10000) * 1e-4f; }

std::vector<float> random_floats(size_t count, float offset = 0.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = random_float() + offset;
    return values;
}

struct Packed {
    sk_matrix matrix;
    std::vector<uint8_t> bytes;
};

// Memory of weights that live until the end.
std::vector<Packed*> kept;

sk_matrix random_matrix(int32_t format, int64_t rows, int64_t columns) {
    std::vector<uint8_t> codes(size_t(rows * columns * 4));
    std::vector<uint8_t> sub(size_t(rows * columns / 16)), sub_minimum(sub.size());
    std::vector<uint16_t> scale(size_t(rows * columns / 32)), minimum(scale.size());
    for (uint8_t& code : codes) code = uint8_t(random_bits());
    if (format >= SK_BF16) {  // numbers around 0.05 and no infinities
        for (int64_t i = 0; i < rows * columns; i++) {
            const float value = random_float() * 0.1f;
            uint32_t bits;
            memcpy(&bits, &value, 4);
            const uint16_t brain = uint16_t(bits >> 16), half = uint16_t(0x2000 | (random_bits() & 0x8bff));
            if (format == SK_F32) memcpy(&codes[size_t(4 * i)], &bits, 4);
            if (format == SK_BF16) memcpy(&codes[size_t(2 * i)], &brain, 2);
            if (format == SK_F16) memcpy(&codes[size_t(2 * i)], &half, 2);
        }
    }
    for (uint8_t& value : sub) value = uint8_t(random_bits() & 63);
    for (uint8_t& value : sub_minimum) value = uint8_t(random_bits() & 63);
    for (uint16_t& value : scale) value = uint16_t(0x1000 + (random_bits() & 0x3ff));
    for (uint16_t& value : minimum) value = uint16_t(0x9c00 + (random_bits() & 0x3ff));
    std::vector<uint8_t> exponents(scale.size());
    for (uint8_t& value : exponents) value = uint8_t(118 + (random_bits() & 3));
    const void* scales = format == SK_MXFP4 ? (const void*)exponents.data() : scale.data();
    Packed* packed = new Packed;
    packed->bytes.resize(size_t(sk_packed_bytes(format, rows, columns)) + 64);
    uint8_t* start = packed->bytes.data() + (64 - uintptr_t(packed->bytes.data()) % 64) % 64;
    sk_pack(format, rows, columns, codes.data(), scales, minimum.data(), sub.data(), sub_minimum.data(), start);
    packed->matrix = {format, 0, rows, columns, start};
    kept.push_back(packed);
    return packed->matrix;
}

uint64_t digest(uint64_t before, const std::vector<float>& values) {
    uint64_t hash = before;
    for (float value : values) {
        uint32_t bits;
        memcpy(&bits, &value, 4);
        hash = (hash ^ bits) * 1099511628211ull;
    }
    return hash;
}

uint64_t linear_layers(uint64_t hash) {
    for (int32_t format = SK_Q4; format <= SK_F32; format++)
        for (int64_t tokens : {1, 2, 3, 5, 9, 17}) {
            const sk_matrix matrix = random_matrix(format, 43, 512);
            const std::vector<float> x = random_floats(size_t(tokens) * 512), bias = random_floats(43);
            std::vector<float> y(size_t(tokens) * 43);
            sk_linear(&matrix, bias.data(), x.data(), tokens, y.data(), 2);
            hash = digest(hash, y);
        }
    return hash;
}

// Two layers of a decoder with everything that some family has, over a chain and then a tree.
uint64_t passes(uint64_t hash) {
    constexpr int32_t hidden = 64, heads = 6, key_heads = 2, size = 32, inner = 96, words = 50, slots = 2, columns = 192;
    constexpr int32_t experts = 5, chosen = 2;
    constexpr int32_t chain = 154;  // more than nine tiles of tokens, so that the last one overlaps the one before it
    std::vector<std::vector<float>> norms;
    const auto norm = [&](int32_t length) {
        norms.push_back(random_floats(size_t(length), 1.5f));
        return norms.back().data();
    };
    norms.reserve(100);
    const std::vector<float> cosines = random_floats(columns * size / 2), sines = random_floats(columns * size / 2);
    const sk_rope rope = {cosines.data(), sines.data(), columns, size / 2};
    sk_layer layers[2] = {};
    for (int i = 0; i < 2; i++) {
        const int32_t format = i ? SK_Q8 : SK_Q4;
        layers[i] = {random_matrix(format, heads * size, hidden), random_matrix(format, key_heads * size, hidden),
                     random_matrix(SK_BF16, key_heads * size, hidden), random_matrix(format, hidden, heads * size),
                     random_matrix(format, inner, hidden), random_matrix(format, inner, hidden),
                     random_matrix(format, hidden, inner), norm(heads * size), norm(key_heads * size), nullptr, nullptr,
                     norm(hidden), i ? nullptr : norm(hidden), norm(hidden), i ? nullptr : norm(hidden), norm(size),
                     norm(size), i ? 40 : 0, 0, SK_ATTENTION, 0, nullptr, nullptr, {}, nullptr, nullptr, nullptr, nullptr, nullptr,
                     key_heads, size, i, 1.0f};
    }
    sk_model model{};
    model.layer_count = 2;
    model.hidden = hidden;
    model.heads = heads;
    model.vocabulary = words;
    model.rope_count = 1;
    model.epsilon = 1e-5f;
    model.attention_scale = 0.2f;
    model.embedding_scale = 2.5f;
    model.residual_scale = 0.3f;
    model.logit_scale = 0.7f;
    model.embedding = random_matrix(SK_Q8, words, hidden);
    model.output = model.embedding;
    model.final_norm = norm(hidden);
    model.layers = layers;
    model.ropes = &rope;
    constexpr int32_t activations[] = {SK_SILU, SK_GELU_TANH, SK_CLAMPED_SWISH, SK_CLAMPED_SWISH};
    for (int32_t run = 0; run < 4; run++) {
        const int32_t activation = activations[run];
        if (activation == SK_CLAMPED_SWISH) {
            sk_layer& mixture = layers[1];
            mixture.router = random_matrix(SK_BF16, experts, hidden);
            mixture.gate = random_matrix(SK_MXFP4, experts * inner, hidden);
            mixture.up = random_matrix(SK_MXFP4, experts * inner, hidden);
            mixture.down = random_matrix(SK_MXFP4, experts * hidden, inner);
            mixture.router_bias = norm(experts);
            mixture.gate_bias = norm(experts * inner);
            mixture.up_bias = norm(experts * inner);
            mixture.down_bias = norm(experts * hidden);
            mixture.shared_gate = mixture.shared_up = random_matrix(SK_Q8, inner, hidden);
            mixture.shared_down = random_matrix(SK_Q4, hidden, inner);
            mixture.shared_router = random_matrix(SK_F32, 1, hidden);
            mixture.choice_bias = norm(experts);
            mixture.sinks = norm(heads);
            model.experts = experts;
            model.experts_per_token = chosen;
            model.expert_size = inner;
            model.normalise_experts = 1;
            model.sigmoid_experts = run == 3;
            model.routed_scale = 1.0f;
        }
        model.activation = activation;
        model.attention_cap = model.logit_cap = activation == SK_SILU ? 0.0f : 6.0f;
        sk_decoder* decoder = sk_decoder_new(&model);
        std::vector<uint16_t> cache(size_t(4) * slots * key_heads * columns * size);
        const size_t part = cache.size() / 4;
        std::vector<float> scales(4 * part / size);
        sk_cache caches[2] = {};
        for (size_t i = 0; i < 2; i++) {
            caches[i] = {cache.data() + 2 * i * part, cache.data() + (2 * i + 1) * part, nullptr, nullptr};
            if (run < 3) continue;  // the last run is over 8-bit codes
            caches[i].key_scales = scales.data() + 2 * i * part / size;
            caches[i].value_scales = scales.data() + (2 * i + 1) * part / size;
        }
        std::vector<int32_t> blocks(size_t(slots) * columns / 32);
        for (size_t i = 0; i < blocks.size(); i++) blocks[i] = int32_t(i * 5 % blocks.size());
        const sk_tables tables = {blocks.data(), slots, columns / 32};
        sk_decoder_attach(decoder, &tables, caches);
        std::vector<int64_t> ids(chain);
        std::vector<int32_t> slot(chain, 1), places(chain), offsets(chain + 1, 0);
        for (int32_t i = 0; i < chain; i++) {
            ids[size_t(i)] = random_bits() % words;
            places[size_t(i)] = i;
        }
        std::vector<float> logits(chain * words);
        sk_batch batch{};
        batch.tokens = batch.judged_count = chain;
        batch.ids = ids.data();
        batch.slots = slot.data();
        batch.positions = batch.columns = batch.prefixes = batch.judged = places.data();
        batch.ancestor_offsets = offsets.data();
        batch.ancestors = places.data();
        batch.logits = logits.data();
        batch.threads = 2;
        if (!sk_decoder_pass(decoder, &batch)) printf("%s\n", sk_error());
        hash = digest(hash, logits);
        const int32_t tree_columns[] = {chain, chain + 1, chain + 2, chain + 3};
        const int32_t prefixes[] = {chain, chain, chain, chain};
        const int32_t positions[] = {chain, chain + 1, chain + 1, chain + 2}, tree_offsets[] = {0, 0, 1, 2, 4};
        const int32_t ancestors[] = {chain, chain, chain, chain + 2};
        batch.tokens = batch.judged_count = 4;
        batch.columns = tree_columns;
        batch.prefixes = prefixes;
        batch.positions = positions;
        batch.ancestor_offsets = tree_offsets;
        batch.ancestors = ancestors;
        logits.resize(4 * words);
        if (!sk_decoder_pass(decoder, &batch)) printf("%s\n", sk_error());
        hash = digest(hash, logits);
        sk_decoder_free(decoder);
    }
    return hash;
}

// Distributions with every filter, tokens drawn from them, and a tree of those judged.
uint64_t samples(uint64_t hash) {
    constexpr int64_t words = 1037, drafted = 3;
    const sk_sampling kinds[] = {
        {1.0, 1.0, 0, 0.0, 0.1, -INFINITY, 0}, {0.7, 0.9, 40, 0.0, 0.1, -3.0f, 0}, {1.3, 0.6, 0, 0.5, 0.02, -INFINITY, 0}};
    for (const sk_sampling& kind : kinds) {
        std::vector<float> logits(4 * words), q = random_floats(words, 1.0f);
        for (float& value : logits) value = random_float() * 4.0f;
        for (float& weight : q) weight *= weight / words;
        std::vector<int64_t> tokens = {3, 141, 592};
        tokens.resize(3 * drafted);
        std::vector<int32_t> path(drafted);
        std::vector<float> p(drafted), q_of(drafted), beta(drafted);
        std::vector<int64_t> text = {1, 2, 3, 1, 2};
        const std::vector<uint8_t> breaks(words);
        sk_penalties penalties = {text.data(), 5, 2, nullptr, nullptr, 0, 1.2f, 0.3f, 0.1f, 0, 0.8, 1.75, 1, -1, breaks.data()};
        sk_row row{};
        row.logits = logits.data();
        row.sampling = &kind;
        row.penalties = &penalties;
        row.count = drafted;
        row.drafted = tokens.data();
        row.q = q.data();
        row.seed = 9;
        row.path = path.data();
        row.p = p.data();
        row.q_of = q_of.data();
        row.beta = beta.data();
        sk_rows rows = {1, &row, drafted, words, words, nullptr, nullptr, 0, 4, 2, 3, 2};
        if (!sk_judge(&rows)) printf("%s\n", sk_error());
        hash = digest(digest(digest(hash, q), p), {float(row.last), float(row.accepted), q_of[0], beta[0]});
    }
    return hash;
}

// Trees that a head of one layer grows: of the likeliest tokens, and of drawn ones.
uint64_t growths(uint64_t hash) {
    constexpr int32_t hidden = 64, heads = 2, size = 32, inner = 96, words = 300, slots = 2, columns = 64, taps = 2;
    constexpr int32_t read_tokens = 5, longest = 8, branches = 3, edge_count = 3;
    const std::vector<float> norm = random_floats(hidden, 1.5f);
    const std::vector<float> cosines = random_floats(columns * size / 2), sines = random_floats(columns * size / 2);
    const sk_rope rope = {cosines.data(), sines.data(), columns, size / 2};
    sk_layer layer{};
    for (sk_matrix* each : {&layer.query, &layer.key, &layer.value, &layer.output})
        *each = random_matrix(SK_Q4, hidden, hidden);
    layer.gate = random_matrix(SK_Q8, inner, hidden);
    layer.up = random_matrix(SK_Q8, inner, hidden);
    layer.down = random_matrix(SK_Q8, hidden, inner);
    layer.attention_norm = layer.mlp_norm = norm.data();
    sk_head_model model{};
    model.layer.layer_count = model.layer.rope_count = 1;
    model.layer.hidden = hidden;
    model.layer.heads = layer.key_heads = heads;
    layer.head_size = size;
    layer.scale = 1.0f;
    model.layer.vocabulary = words;
    model.layer.activation = SK_SILU;
    model.layer.epsilon = 1e-5f;
    model.layer.attention_scale = 0.2f;
    model.layer.embedding_scale = model.layer.residual_scale = model.layer.logit_scale = 1.0f;
    model.layer.embedding = model.layer.output = random_matrix(SK_Q8, words, hidden);
    model.layer.final_norm = norm.data();
    model.layer.layers = &layer;
    model.layer.ropes = &rope;
    model.fuse = random_matrix(SK_Q8, hidden, taps * hidden);
    model.again = random_matrix(SK_Q8, hidden, hidden);
    model.token = random_matrix(SK_Q4, hidden, hidden);
    model.tap_count = taps;
    sk_head* head = sk_head_new(&model);
    std::vector<float> states(slots * columns * hidden), q(slots * longest * words);
    std::vector<uint16_t> keys(slots * columns * hidden), values(keys.size());
    std::vector<int32_t> blocks(size_t(slots) * columns / 32);
    for (size_t i = 0; i < blocks.size(); i++) blocks[i] = int32_t(i);
    const sk_tables tables = {blocks.data(), slots, columns / 32};
    const sk_cache cache = {keys.data(), values.data(), nullptr, nullptr};
    sk_head_attach(head, &tables, states.data(), &cache);
    std::vector<int64_t> known(words), drafted(slots * 3 * longest);
    for (int64_t i = 0; i < words; i++) known[size_t(i)] = i;
    const int64_t ids[] = {3, 1, 4, 1, 5};
    const double passes[] = {0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16}, rates[] = {0.3, 0.5, 0.7, 0.9};
    const double edges[] = {0.01, 0.05, 0.3};
    const sk_sampling sampling = {0.9, 0.95, 0, 0.0, 0.1, -INFINITY, 0};
    std::vector<float> tapped[slots];
    sk_read read[slots];
    sk_growth rows[slots]{};
    for (int32_t slot = 0; slot < slots; slot++) {
        tapped[slot] = random_floats(read_tokens * taps * hidden);
        read[slot] = {slot, 0, read_tokens, tapped[slot].data()};
        rows[slot].slot = slot;
        rows[slot].begin = 1;
        rows[slot].end = 1 + read_tokens;
        rows[slot].depth = 4;
        rows[slot].required = 2;
        rows[slot].ids = ids;
        rows[slot].passes = passes;
        rows[slot].rates = rates;
        rows[slot].step = 0.02;
        rows[slot].sampling = slot ? &sampling : nullptr;
        rows[slot].seed = 7;
        rows[slot].number = 3;
        rows[slot].q = q.data() + slot * longest * words;
        rows[slot].drafted = drafted.data() + slot * 3 * longest;
    }
    sk_growing growing{};
    growing.row_count = growing.read_count = slots;
    growing.rows = rows;
    growing.read = read;
    growing.known = known.data();
    growing.vocabulary = words;
    growing.first = 1;
    growing.edges = edges;
    growing.edge_count = edge_count;
    growing.longest = longest;
    growing.branches = branches;
    growing.least = 0.01;
    growing.hope = 0.8;
    growing.threads = 2;
    if (!sk_grow(sk_head_drafter(head), &growing)) printf("%s\n", sk_error());
    const std::vector<float> found(drafted.begin(), drafted.end());
    hash = digest(digest(digest(hash, states), found), q);
    hash = digest(hash, {float(rows[0].count), float(rows[1].count), float(growing.steps)});
    sk_head_free(head);
    return hash;
}

}  // namespace

int main() {
    for (int32_t variant = 1; variant <= sk_variants(); variant *= 2) {
        if (!(sk_variants() & variant)) continue;
        sk_use(variant);
        state = 1;
        const uint64_t layers = linear_layers(14695981039346656037ull);
        const uint64_t all = growths(samples(passes(layers)));
        printf("%s %016llx\n", std::string(sk_variant()).c_str(), (unsigned long long)all);
    }
    for (Packed* packed : kept) delete packed;
}
