// Gumbel noise by position and token id, as `sampling/gumbel.py`: every id has an
// exponential E, and the token that minimises E / p is distributed as p. Agrees with numpy up to
// 1e-14.
//
// Ids form blocks of 64, members 256 apart. The smallest E of a block and its owner are drawn
// first; the excess of the others is exponential again. Needs nothing else of this folder:
//
//     Least least;                                   // memory, kept between calls
//     log_noise({blocks, tokens}, ids, n, least, out);  // out[i] = log E of ids[i]

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace paceline {

constexpr int kMembersBits = 6, kApartBits = 8;
constexpr int kMembers = 1 << kMembersBits, kApart = 1 << kApartBits;
constexpr int kSpan = kMembers * kApart;  // ids of 256 blocks

// What one position's noise follows from: the two words of its key, little-endian.
struct NoiseKey {
    uint64_t blocks, tokens;
};

// Eight at a time: what the widest vectors hold; compilers split them for narrower ones.
constexpr int kEight = 8;
typedef uint64_t Words __attribute__((vector_size(8 * kEight), aligned(8), may_alias));
typedef int64_t Longs __attribute__((vector_size(8 * kEight), aligned(8), may_alias));
typedef double Doubles __attribute__((vector_size(8 * kEight), aligned(8), may_alias));
typedef int32_t Ids __attribute__((vector_size(4 * kEight), aligned(4), may_alias));

inline Longs longs(Ids ids) { return __builtin_convertvector(ids, Longs); }

// 0, 1, ... 7 from `first` on.
inline Longs count_from(int64_t first) { return Longs{0, 1, 2, 3, 4, 5, 6, 7} + first; }

// Block of an id; first id of a block, whose members follow 256 apart; place of an id in its block.
template <class Long>
inline Long block_of(Long id) {
    return id >> (kMembersBits + kApartBits) << kApartBits | (id & (kApart - 1));
}
template <class Long>
inline Long first_of(Long block) {
    return block >> kApartBits << (kMembersBits + kApartBits) | (block & (kApart - 1));
}
template <class Long>
inline Long place_of(Long id) {
    return id >> kApartBits & (kMembers - 1);
}

// 64 random bits per name: SplitMix64 (Steele, Lea and Flood 2014), begun at the key.
inline Words mix(uint64_t key, Longs names) {
    Words bits = Words(names) * 0x9E3779B97F4A7C15u + key;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

// log x for normal positive x, relative error below 1e-15: x = 2^k m, log m = 2 artanh((m-1) /
// (m+1)). Not inlined, so that one copy stays in the instruction cache.
__attribute__((noinline)) inline Doubles logarithm(Doubles x) {
    const Longs bits = Longs(x);
    const Longs k = (bits - 0x3FE6A09E667F3BCD) >> 52;
    const Doubles m = Doubles(bits - (k << 52));
    const Doubles s = (m - 1.0) / (m + 1.0), z = s * s;
    Doubles p = z * (2.0 / 21) + 2.0 / 19;
    p = p * z + 2.0 / 17;
    p = p * z + 2.0 / 15;
    p = p * z + 2.0 / 13;
    p = p * z + 2.0 / 11;
    p = p * z + 2.0 / 9;
    p = p * z + 2.0 / 7;
    p = p * z + 2.0 / 5;
    p = p * z + 2.0 / 3;
    return __builtin_convertvector(k, Doubles) * 0.6931471805599453 + (p * z * s + 2.0 * s);
}

// Exponentials from bits: multiples of 2^-53, with 2^-54 in place of 0, through -log.
inline Doubles exponentials(Words bits) {
    Doubles x = __builtin_convertvector(Longs(bits >> 11), Doubles) * 0x1p-53;
    x = x < 0x1p-54 ? Doubles{} + 0x1p-54 : x;
    return -logarithm(x);
}

// Smallest noise of the blocks with these names, and the places of the members that own it: the
// bits that logarithms leave out.
inline Doubles least_noise(const NoiseKey& key, Longs blocks, Longs& owners) {
    const Words bits = mix(key.blocks, blocks);
    owners = Longs(bits & (kMembers - 1));
    return exponentials(bits) * (1.0 / kMembers);
}

// Noise of tokens, from the smallest of each one's block and the id that owns it.
inline Doubles token_noise(const NoiseKey& key, Longs ids, Doubles least, Longs owners) {
    const Doubles beyond = exponentials(mix(key.tokens, ids));
    return least + (ids == owners ? Doubles{} : beyond);
}

// Noise of tokens, whichever they are.
inline Doubles token_noise(const NoiseKey& key, Longs ids) {
    const Longs blocks = block_of(ids);
    Longs owners;
    const Doubles least = least_noise(key, blocks, owners);
    return token_noise(key, ids, least, first_of(blocks) + owners * kApart);
}

// The smallest noise of the first blocks, and the ids that own it.
class Least {
public:
    std::vector<double> noise;
    std::vector<int64_t> owners;

    void find(const NoiseKey& key, int64_t blocks) {
        const int64_t room = (blocks + kEight - 1) / kEight * kEight;
        noise.resize(room);
        owners.resize(room);
        for (int64_t first = 0; first < blocks; first += kEight) {
            const Longs names = count_from(first);
            Longs places;
            *reinterpret_cast<Doubles*>(&noise[first]) = least_noise(key, names, places);
            *reinterpret_cast<Longs*>(&owners[first]) = first_of(names) + places * kApart;
        }
    }

    // Of the blocks of eight ids.
    void of(Longs ids, Doubles& smallest, Longs& owner) const {
        const Longs blocks = block_of(ids);
        for (int lane = 0; lane < kEight; ++lane) {
            smallest[lane] = noise[blocks[lane]];
            owner[lane] = owners[blocks[lane]];
        }
    }
};

// Into out[n], float or double, the logarithm of each id's noise, to be taken from log weights
// (minus it is Gumbel noise). Ids are not negative, in any order. `room` is overwritten.
template <class Number>
inline void log_noise(const NoiseKey& key, const int32_t* ids, int64_t n, Least& room,
                      Number* out) {
    int32_t highest = 0;
    for (int64_t i = 0; i < n; ++i) highest = std::max(highest, ids[i]);
    const int64_t blocks = (highest / kSpan + 1) * int64_t(kApart);
    const bool many = n > blocks;  // so blocks are met more than once
    if (many) room.find(key, blocks);
    typedef Number Out __attribute__((vector_size(sizeof(Number) * kEight), aligned(4), may_alias));
    for (int64_t i = 0; i < n; i += kEight) {
        Ids some = {};
        const int64_t count = std::min<int64_t>(kEight, n - i);
        if (count == kEight) {
            some = *reinterpret_cast<const Ids*>(ids + i);
        } else {
            for (int64_t lane = 0; lane < count; ++lane) some[lane] = ids[i + lane];
        }
        const Longs wide = longs(some);
        Doubles noise;
        if (many) {
            Doubles least;
            Longs owners;
            room.of(wide, least, owners);
            noise = token_noise(key, wide, least, owners);
        } else {
            noise = token_noise(key, wide);
        }
        const Doubles logs = logarithm(noise);
        if (count == kEight) {
            *reinterpret_cast<Out*>(out + i) = __builtin_convertvector(logs, Out);
        } else {
            for (int64_t lane = 0; lane < count; ++lane) out[i + lane] = Number(logs[lane]);
        }
    }
}

}  // namespace paceline
