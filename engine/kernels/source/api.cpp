#include "api.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>

#include "activations.h"
#include "block.h"
#include "decoder.h"
#include "draft_model.h"
#include "head.h"
#include "packing.h"
#include "quantizing.h"
#include "rounds.h"
#include "sampling.h"
#include "text_match.h"
#include "thread_pool.h"
#include "variants.h"

namespace {

thread_local std::string last_error;

int32_t refuse(std::string why) {
    last_error = std::move(why);
    return 0;
}

// Runs `body`, which says what is wrong or nothing; out of memory is an error like any other.
template <typename Body>
int32_t guarded(Body body) {
    try {
        const std::string fault = body();
        return fault.empty() ? 1 : refuse(fault);
    } catch (const std::bad_alloc&) {
        return refuse(SK_NO_MEMORY);
    } catch (const std::exception& error) {
        return refuse(error.what());
    }
}

sk::TreeDrafter* trees_of(sk_drafter* drafter) { return static_cast<sk::TreeDrafter*>(drafter); }

// What `make` returns; null after an error.
template <typename Make>
auto made(Make make) -> decltype(make()) {
    decltype(make()) result = nullptr;
    guarded([&]() -> std::string {
        result = make();
        return "";
    });
    return result;
}

std::string cannot_pack(int32_t format, int64_t rows, int64_t columns) {
    if (!sk::is_known(format)) return "weights of format " + std::to_string(format) + " are not known";
    if (rows < 1 || columns < 1) return "a matrix without values cannot be packed";
    const int64_t group = sk::columns_per_scale_block(format);
    if (columns % group)
        return "rows of " + std::to_string(columns) + " weights cannot be divided into groups of " +
               std::to_string(group);
    return "";
}

std::string missing_row(const sk_matrix& matrix, const int64_t* rows, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= matrix.rows) return "there is no row " + std::to_string(rows[i]);
    return "";
}

}  // namespace

struct sk_decoder {
    explicit sk_decoder(const sk_model& model) : decoder(model), drafter(decoder) {}

    sk::Decoder decoder;
    sk::DraftModel drafter;  // for other targets
    sk::Round round;
};

struct sk_head {
    std::unique_ptr<sk::StateDrafter> drafter;
};

int32_t sk_abi(void) { return SK_ABI; }
void sk_limit_threads(int32_t threads) { sk::ThreadPool::instance().limit(threads); }
const char* sk_error(void) { return last_error.c_str(); }
int32_t sk_variants(void) { return sk::available_variants(); }
const char* sk_variant(void) { return sk::kernels().name; }
const char* sk_notice(void) { return sk::variants_notice(); }

int32_t sk_use(int32_t variant) {
    const char* hindrance = sk::use_variant(variant);
    return hindrance ? refuse(hindrance) : 1;
}

int64_t sk_packed_bytes(int32_t format, int64_t rows, int64_t columns) {
    const std::string fault = cannot_pack(format, rows, columns);
    if (fault.empty()) return sk::panels(rows) * sk::panel_bytes(format, columns);
    refuse(fault);
    return -1;
}

int32_t sk_pack(int32_t format, int64_t rows, int64_t columns, const void* codes, const void* scale,
                const uint16_t* minimum, const void* sub_scale, const uint8_t* sub_minimum, void* packed) {
    return guarded([&] {
        const std::string fault = cannot_pack(format, rows, columns);
        if (fault.empty())
            sk::pack(format, rows, columns, {codes, scale, minimum, sub_scale, sub_minimum},
                     static_cast<uint8_t*>(packed));
        return fault;
    });
}

void sk_quantize(int32_t format, const void* values, int64_t groups, void* codes, uint16_t* scale,
                 uint16_t* minimum) {
    if (minimum)
        sk::quantize_4_bit(format, values, groups, static_cast<uint8_t*>(codes), scale, minimum);
    else
        sk::quantize_8_bit(format, values, groups, static_cast<int8_t*>(codes), scale);
}

int32_t sk_unpack(const sk_matrix* matrix, const int64_t* rows, int64_t count, float* out) {
    return guarded([&] {
        const std::string fault = missing_row(*matrix, rows, count);
        for (int64_t i = 0; fault.empty() && i < count; i++)
            sk::unpack_row(*matrix, rows[i], out + i * matrix->columns);
        return fault;
    });
}

int32_t sk_pick(const sk_matrix* matrix, const int64_t* rows, int64_t count, void* packed) {
    return guarded([&] {
        const std::string fault = missing_row(*matrix, rows, count);
        if (fault.empty()) sk::pick_rows(*matrix, rows, count, static_cast<uint8_t*>(packed));
        return fault;
    });
}

int32_t sk_linear(const sk_matrix* matrix, const float* bias, const float* x, int64_t tokens, float* y,
                  int32_t threads) {
    return guarded([&]() -> std::string {
        const std::string fault = cannot_pack(matrix->format, matrix->rows, matrix->columns);
        if (!fault.empty()) return fault;
        sk::ThreadPool& pool = sk::ThreadPool::instance();
        std::lock_guard<std::mutex> lock(pool.mutex);
        pool.start(threads);
        const sk::Kernels& kernels = sk::kernels();
        static sk::Activations& activations = *new sk::Activations;  // shared, as the pool is
        activations.reserve(tokens, matrix->columns);
        for (int64_t t = 0; t < tokens; t++) {
            std::copy(x + t * matrix->columns, x + (t + 1) * matrix->columns, activations.token(t));
            if (sk::is_quantized(matrix->format)) activations.quantize(kernels, t);
        }
        const sk::Inputs inputs = activations.inputs();
        const int64_t total = sk::panels(matrix->rows);
        const int64_t share = std::max<int64_t>(1, std::min<int64_t>(64, total / (pool.threads() * 6)));
        auto piece = [&](int64_t i, int) {
            const int64_t first = i * share;
            kernels.linear(*matrix, inputs, first, std::min(total, first + share), 0, tokens, bias, false,
                           y + first * sk::kPanel, matrix->rows);
        };
        pool.each((total + share - 1) / share, piece);
        return "";
    });
}

sk_decoder* sk_decoder_new(const sk_model* model) {
    return made([&] { return new sk_decoder(*model); });
}

void sk_decoder_free(sk_decoder* decoder) { delete decoder; }

int32_t sk_decoder_attach(sk_decoder* decoder, const sk_tables* tables, const sk_cache* layers) {
    return guarded([&]() -> std::string {
        decoder->decoder.attach(*tables, layers);
        return "";
    });
}

int32_t sk_decoder_attach_recurrent(sk_decoder* decoder, int32_t ring, float* const* rings, float* const* stored,
                                    int32_t* lengths, const int32_t* commits) {
    return guarded([&]() -> std::string {
        decoder->decoder.attach_recurrent(ring, rings, stored, lengths, commits);
        return "";
    });
}

int32_t sk_decoder_pass(sk_decoder* decoder, const sk_batch* batch) {
    return guarded([&]() -> std::string {
        std::string fault = decoder->decoder.fault(*batch);
        if (!fault.empty()) return fault;
        std::lock_guard<std::mutex> lock(sk::ThreadPool::instance().mutex);
        decoder->decoder.pass(*batch);
        sk::ThreadPool::instance().fetch_next();
        return "";
    });
}

int32_t sk_decoder_move(sk_decoder* decoder, int32_t slot, const int32_t* sources, int64_t count, int32_t target) {
    return guarded([&] { return decoder->decoder.move(slot, sources, count, target); });
}

sk_drafter* sk_decoder_drafter(sk_decoder* decoder) { return &decoder->drafter; }

int32_t sk_rounds_run(sk_decoder* decoder, sk_drafter* drafter, sk_round* rounds, int64_t count, const int64_t* ends,
                      int64_t end_count) {
    int64_t ran = 0;
    const int32_t fine = guarded([&] {
        sk::Rounds all(decoder->decoder, trees_of(drafter), decoder->round, ends, end_count);
        return all.run(rounds, count, ran);
    });
    return fine ? int32_t(ran) : 0;
}

sk_head* sk_head_new(const sk_head_model* model) {
    return made([&] { return new sk_head{std::make_unique<sk::Head>(*model)}; });
}

sk_head* sk_block_new(const sk_block_model* model) {
    return made([&] { return new sk_head{std::make_unique<sk::Block>(*model)}; });
}

void sk_head_free(sk_head* head) { delete head; }

int32_t sk_head_attach(sk_head* head, const sk_tables* tables, float* states, const sk_cache* caches) {
    return guarded([&]() -> std::string {
        head->drafter->attach(*tables, states, caches);
        return "";
    });
}

int32_t sk_head_absorb(sk_head* head, int64_t count, const sk_read* read, int32_t threads) {
    return guarded([&]() -> std::string {
        std::string fault = head->drafter->fault(count, read);
        if (fault.empty()) head->drafter->absorb(count, read, threads);
        return fault;
    });
}

int32_t sk_head_absorb_round(sk_head* head, const sk_round* round) {
    return guarded([&] { return head->drafter->absorb(*round); });
}

int32_t sk_head_run(sk_head* head, const sk_head_step* step) {
    return guarded([&] { return head->drafter->run(*step); });
}

sk_drafter* sk_head_drafter(sk_head* head) { return head->drafter.get(); }

int32_t sk_grow(sk_drafter* drafter, sk_growing* growing) {
    return guarded([&] { return sk::grow(trees_of(drafter), *growing); });
}

int32_t sk_continue_text(const int64_t* text, int64_t count, int64_t most, int64_t* found) {
    return guarded([&]() -> std::string {
        sk::TextMatch match(text, count);
        found[0] = match.length();
        for (int64_t i = 1; i <= most; i++) {
            const auto [token, grade] = match.next();
            found[i] = token;
            found[most + i] = grade;
            if (token < 0) break;
        }
        return "";
    });
}

int32_t sk_judge(sk_rows* rows) {
    return guarded([&]() -> std::string {
        std::string fault = sk::drafting_fault(*rows);
        if (fault.empty()) sk::judge(*rows);
        return fault;
    });
}
