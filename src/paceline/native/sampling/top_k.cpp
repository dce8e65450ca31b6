#include "sampling/top_k.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include "threads/pool.hpp"

namespace paceline {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kParts = 8;  // of a row; 16 maxima of each are noted, one per lane

// Which of two places comes first.
struct Larger {
    const float* numbers;
    bool operator()(int32_t a, int32_t b) const {
        return numbers[a] > numbers[b] || (numbers[a] == numbers[b] && a < b);
    }
};

// A number that at least `best` of the row reach, and few others: all maxima are of different
// places.
float threshold(const float* numbers, int64_t count, int64_t best) {
    if (best > kParts * kLanes) return kNone;
    const int64_t vectors = count / kLanes;
    float maxima[kParts * kLanes];
    for (int64_t part = 0; part < kParts; ++part) {
        Vec most = all(kNone);
        for (int64_t v = part * vectors / kParts; v < (part + 1) * vectors / kParts; ++v) {
            const Vec x = load(numbers + v * kLanes);
            most = larger(x, most);
        }
        store(maxima + part * kLanes, most);
    }
    std::nth_element(maxima, maxima + best - 1, maxima + kParts * kLanes, std::greater<float>());
    return maxima[best - 1];
}

// Of a piece; places are counted from `before` on.
Peak peak(const float* numbers, int64_t count, int64_t before) {
    constexpr int64_t kChains = 4, kStep = kChains * kLanes, kBlock = 16 * kStep;
    Peak best{-1, kNone};
    Vec odd[kChains];  // 0 as long as all are finite
    std::fill_n(odd, kChains, zeros());
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        const int64_t end = std::min(begin + kBlock, count);
        Vec most[kChains];
        std::fill_n(most, kChains, all(kNone));
        int64_t i = begin;
        for (; i + kStep <= end; i += kStep) {
            for (int c = 0; c < kChains; ++c) {
                const Vec x = load(numbers + i + c * kLanes);
                most[c] = larger(x, most[c]);
                odd[c] += x * 0.0f;
            }
        }
        for (; i < end; ++i) {
            most[0] = larger(all(numbers[i]), most[0]);
            odd[0] += all(numbers[i]) * 0.0f;
        }
        const Vec both = larger(larger(most[0], most[1]), larger(most[2], most[3]));
        const float value = largest(both);
        if (!(value > best.value)) continue;
        best = {-1, value};
        for (int64_t at = begin; best.place < 0; ++at) {
            if (numbers[at] == value) best.place = int32_t(before + at);
        }
    }
    const bool sound = sum((odd[0] + odd[1]) + (odd[2] + odd[3])) == 0.0f;
    return sound ? best : Peak{-1, best.value};
}

}  // namespace

void find_peaks(Rows<const float> numbers, int64_t rows, int64_t width, Rows<Peak> peaks) {
    each(kPieces, true, [=](int64_t piece) {
        const int64_t begin = piece * width / kPieces, end = (piece + 1) * width / kPieces;
        for (int64_t r = 0; r < rows; ++r) {
            peaks[r][piece] = peak(numbers[r] + begin, end - begin, begin);
        }
    });
    for (int64_t r = 0; r < rows; ++r) {
        Peak& best = peaks[r][0];
        for (int piece = 1; piece < kPieces && best.place >= 0; ++piece) {
            const Peak& other = peaks[r][piece];
            if (other.place < 0 || other.value > best.value) best = other;
        }
    }
}

void find_top_k(const float* numbers, int64_t count, int64_t best, std::vector<int32_t>& found) {
    const float least = threshold(numbers, count, best);
    found.clear();
    reaching(numbers, count, least, [&](int32_t place) { found.push_back(place); });
    if (int64_t(found.size()) <= best) return;
    std::nth_element(found.begin(), found.begin() + best - 1, found.end(), Larger{numbers});
    found.resize(best);
}

bool rank_top_k(const float* numbers, int64_t count, int64_t best, int64_t* places, float* values) {
    thread_local std::vector<int32_t> found;
    find_top_k(numbers, count, best, found);
    if (int64_t(found.size()) < best) return false;
    std::sort(found.begin(), found.end(), Larger{numbers});
    for (int64_t i = 0; i < best; ++i) {
        places[i] = found[i];
        values[i] = numbers[found[i]];
    }
    return true;
}

}  // namespace paceline
