#include "thread_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sk {

namespace {

// A pass has a job every few microseconds. What lasts longer is a pause between passes, to whose end a sleeping thread
// would be late, or a thread that another process keeps from running: from then on others may have the processor.
constexpr auto kSpin = std::chrono::microseconds(60);
constexpr auto kYield = std::chrono::microseconds(1500);

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until `done`, or gives up when it takes too long; says which.
template <typename Condition>
bool spin_until(Condition done) {
    for (int i = 0; i < 64; i++) {
        if (done()) return true;
        pause_briefly();
    }
    const auto started = std::chrono::steady_clock::now();
    for (auto now = started; now < started + kYield; now = std::chrono::steady_clock::now()) {
        if (now > started + kSpin) std::this_thread::yield();
        for (int i = 0; i < 32; i++) {
            if (done()) return true;
            pause_briefly();
        }
    }
    return done();
}

}  // namespace

ThreadPool& ThreadPool::instance() {
    // Never destroyed: at the end of the process threads may still be asleep in it.
    static ThreadPool* pool = new ThreadPool;
    return *pool;
}

void ThreadPool::start(int threads) {
    threads = std::min(threads, kMostThreads);
    while (int(workers_.size()) + 1 < threads) {
        const int number = int(workers_.size()) + 1;
        workers_.emplace_back([this, number] { work_as(number); });
        workers_.back().detach();
    }
    active_.store(threads < 1 ? 1 : threads);
}

void ThreadPool::run(int64_t count, Work work, void* context) {
    if (count <= 0) return;
    if (count == 1 || active_.load(std::memory_order_relaxed) == 1) {
        for (int64_t piece = 0; piece < count; piece++) work(context, piece, 0);
        return;
    }
    unfinished_.store(count, std::memory_order_relaxed);
    const int64_t parts = std::min<int64_t>(participants(), count);
    const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
    used_.store(int(parts), std::memory_order_relaxed);
    for (int64_t i = 0; i < parts; i++) {
        const int64_t first = count * i / parts, end = count * (i + 1) / parts;
        shares_[i].work = work;
        shares_[i].context = context;
        shares_[i].end.store(end, std::memory_order_relaxed);
        shares_[i].ticket.store(uint64_t(job) << 32 | uint64_t(end - first), std::memory_order_release);
    }
    job_.store(job);
    // Threads that are not used for the job sleep and are not woken for it.
    if (sleeping_.load() > int(workers_.size()) + 1 - participants()) wake_workers();
    take_pieces(0);
    const auto done = [this] { return unfinished_.load() == 0; };
    if (!spin_until(done)) {
        std::unique_lock<std::mutex> lock(sleep_);
        caller_sleeps_.store(true);
        all_done_.wait(lock, done);
        caller_sleeps_.store(false);
    }
    if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::do_piece(const Share& share, int64_t piece, int thread) {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
        share.work(share.context, piece, thread);
    } catch (...) {
        if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
}

// A thread reports its pieces together when none is left: the line of the count moves from core to core, which takes
// 0.2 µs between cores that do not share a cache.
void ThreadPool::take_pieces(int thread) {
    const int parts = used_.load(std::memory_order_relaxed);
    int64_t finished = 0;
    for (int i = 0; i < parts; i++)
        while (take_from(shares_[(thread + i) % parts], thread)) finished++;
    if (finished && unfinished_.fetch_sub(finished) == finished && caller_sleeps_.load()) {
        std::lock_guard<std::mutex> lock(sleep_);
        all_done_.notify_all();
    }
}

bool ThreadPool::take_from(Share& share, int thread) {
    uint64_t ticket = share.ticket.load(std::memory_order_acquire);
    // A thread may be late, when its job is already over: it must not join one with fewer
    // threads. If `active_` is of a later job than the ticket, the ticket is used up and the exchange fails.
    while ((ticket & 0xffffffffu) && thread < participants()) {
        if (!share.ticket.compare_exchange_weak(ticket, ticket - 1)) continue;
        // The job cannot be over before this piece is reported, so what it says still holds.
        do_piece(share, share.end.load(std::memory_order_relaxed) - int64_t(ticket & 0xffffffffu), thread);
        return true;
    }
    return false;
}

void Fetch::add(const void* data, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kChunk) chunks.push_back(static_cast<const char*>(data) + at);
}

void ThreadPool::will_fetch(const std::shared_ptr<Fetch>& fetch) {
    if (std::find(fetches_.begin(), fetches_.end(), fetch) == fetches_.end()) fetches_.push_back(fetch);
    wanted_fetch_ = fetch.get();
}

void ThreadPool::fetch_next() {
    if (!wanted_fetch_) return;
    wanted_fetch_->next.store(0);
    fetch_.store(wanted_fetch_);
    wanted_fetch_ = nullptr;
}

bool ThreadPool::may_fetch() const {
    const Fetch* fetch = fetch_.load(std::memory_order_acquire);
    return fetch && fetch->next.load(std::memory_order_relaxed) < int64_t(fetch->chunks.size());
}

void ThreadPool::fetch_chunk() {
    Fetch* fetch = fetch_.load(std::memory_order_acquire);
    const int64_t chunk = fetch->next.fetch_add(1);
    if (chunk >= int64_t(fetch->chunks.size())) return;
    // Hints, which no address can make fail: the weights may be gone by now.
    for (int64_t at = 0; at < Fetch::kChunk; at += 64) __builtin_prefetch(fetch->chunks[size_t(chunk)] + at, 0, 2);
}

void ThreadPool::work_as(int number) {
    for (uint32_t seen = 0;;) {
        const auto wanted = [&] { return job_.load() != seen && number < participants(); };
        const auto fetches = [this, number] { return number < participants() && may_fetch(); };
        if (spin_until([&] { return wanted() || fetches(); })) {
            while (!wanted() && fetches()) fetch_chunk();
        } else {
            std::unique_lock<std::mutex> lock(sleep_);
            sleeping_.fetch_add(1);
            work_there_.wait(lock, wanted);
            sleeping_.fetch_sub(1);
        }
        if (!wanted()) continue;
        seen = job_.load();
        take_pieces(number);
    }
}

void ThreadPool::wake_workers() {
    std::lock_guard<std::mutex> lock(sleep_);
    work_there_.notify_all();
}

}  // namespace sk
