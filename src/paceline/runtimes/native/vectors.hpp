// Vectors of 16 numbers, and loops, that the operations here share.

#pragma once

#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>

#include <cstdint>
#include <type_traits>

namespace paceline {

constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef _Float16 HalfVec __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

inline Vec load(const float* at) { return *reinterpret_cast<const Vec*>(at); }
inline Vec load(const _Float16* at) {
    return __builtin_convertvector(*reinterpret_cast<const HalfVec*>(at), Vec);
}
inline void store(float* at, Vec x) { *reinterpret_cast<Vec*>(at) = x; }
inline Vec all(float x) { return Vec{} + x; }

// e^x, 1 at 0, for x from -87 to 88; others are moved there. Relative error below 2e-7.
inline Vec exponential(Vec x) {
    x = x < -87.0f ? all(-87.0f) : x;
    x = x > 88.0f ? all(88.0f) : x;
    const Vec shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec n = (x * 1.44269504f + shift) - shift;
    const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Vec p = r * 1.9875691e-4f + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    p = p * r * r + r + 1.0f;
    const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
    return p * reinterpret_cast<const Vec&>(power);
}

inline float exponential(float x) { return exponential(all(x))[0]; }

inline float sum(Vec x) {
    float total = 0;
    for (int i = 0; i < kLanes; ++i) total += x[i];
    return total;
}

// Calls `some` with the number of rows, at most 6, as a constant, and the first of them, until all
// `rows` are done: in parts of equal size, as far as possible, of at most `most`. How rows are taken
// together changes no row's result.
template <class Some>
void by_rows(int rows, int most, Some&& some) {
    const int parts = (rows + most - 1) / most;
    for (int part = 0; part < parts; ++part) {
        const int first = part * rows / parts;
        switch ((part + 1) * rows / parts - first) {
            case 6: some(std::integral_constant<int, 6>{}, first); break;
            case 5: some(std::integral_constant<int, 5>{}, first); break;
            case 4: some(std::integral_constant<int, 4>{}, first); break;
            case 3: some(std::integral_constant<int, 3>{}, first); break;
            case 2: some(std::integral_constant<int, 2>{}, first); break;
            case 1: some(std::integral_constant<int, 1>{}, first); break;
            default: break;
        }
    }
}

// Calls `body` for 0 to `count` - 1.
template <class Body>
void each(int64_t count, bool parallel, Body&& body) {
    if (parallel) {
        tbb::parallel_for(int64_t{0}, count, body, tbb::simple_partitioner{});
    } else {
        for (int64_t i = 0; i < count; ++i) body(i);
    }
}

}  // namespace paceline
