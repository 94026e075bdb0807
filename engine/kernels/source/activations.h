// Activations of a pass as the linear kernels read them, quantised where a weight asks for it.
#pragma once
#include <stdint.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "kernels.h"

namespace sk {

// A growing piece of memory, aligned for vectors; what it held is gone when it grows.
template <typename Value>
class Buffer {
   public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    ~Buffer() { release(); }

    Value* reserve(int64_t count) {
        if (count > size_) {
            release();
            data_ = static_cast<Value*>(::operator new(size_t(count) * sizeof(Value), std::align_val_t(64)));
            size_ = count;
        }
        return data_;
    }
    Value* get() const { return data_; }

   private:
    void release() {
        if (data_) ::operator delete(data_, std::align_val_t(64));
        data_ = nullptr;
        size_ = 0;
    }

    Value* data_ = nullptr;
    int64_t size_ = 0;
};

class Activations {
   public:
    // Room for [tokens, columns].
    void reserve(int64_t tokens, int64_t columns) {
        columns_ = columns;
        floats_.reserve(tokens * columns + kPanel);
        codes_.reserve(tokens * columns);
        scales_.reserve(tokens * (columns / kGroup) + 1);
        sums_.reserve(tokens * (columns / kGroup) + 1);
        totals_.reserve(tokens * (columns / kPanel) + 2);
    }

    float* token(int64_t t) { return floats_.get() + t * columns_; }

    // Quantises columns `first` to `last` - 1, multiples of 32, of token t.
    void quantize(const Kernels& kernels, int64_t t, int64_t first, int64_t last) {
        const int64_t group = t * (columns_ / kGroup) + first / kGroup;
        kernels.quantize(token(t) + first, last - first, codes_.get() + t * columns_ + first, scales_.get() + group,
                         sums_.get() + group, totals_.get() + 2 * group);
    }
    void quantize(const Kernels& kernels, int64_t t) { quantize(kernels, t, 0, columns_); }

    // Makes row `to` a copy of row t of `from`, which has as many columns.
    void copy(int64_t to, const Activations& from, int64_t t) {
        const int64_t groups = columns_ / kGroup;
        std::copy_n(from.floats_.get() + t * columns_, columns_, token(to));
        std::copy_n(from.codes_.get() + t * columns_, columns_, codes_.get() + to * columns_);
        std::copy_n(from.scales_.get() + t * groups, groups, scales_.get() + to * groups);
        std::copy_n(from.sums_.get() + t * groups, groups, sums_.get() + to * groups);
        std::copy_n(from.totals_.get() + t * 2 * groups, 2 * groups, totals_.get() + to * 2 * groups);
    }

    Inputs inputs() const {
        return {floats_.get(), codes_.get(), scales_.get(), sums_.get(), totals_.get(), columns_};
    }

   private:
    int64_t columns_ = 0;
    Buffer<float> floats_;
    Buffer<int8_t> codes_;
    Buffer<float> scales_, sums_;
    Buffer<int32_t> totals_;
};

}  // namespace sk
