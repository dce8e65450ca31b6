#include "best.hpp"

#include <algorithm>
#include <functional>
#include <limits>

#include "vectors.hpp"

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
            most = x > most ? x : most;
        }
        store(maxima + part * kLanes, most);
    }
    std::nth_element(maxima, maxima + best - 1, maxima + kParts * kLanes, std::greater<float>());
    return maxima[best - 1];
}

}  // namespace

void find_best(const float* numbers, int64_t count, int64_t best, std::vector<int32_t>& found) {
    const float least = threshold(numbers, count, best);
    found.clear();
    reaching(numbers, count, least, [&](int32_t place) { found.push_back(place); });
    if (int64_t(found.size()) <= best) return;
    std::nth_element(found.begin(), found.begin() + best - 1, found.end(), Larger{numbers});
    found.resize(best);
}

bool rank_best(const float* numbers, int64_t count, int64_t best, int64_t* places, float* values) {
    thread_local std::vector<int32_t> found;
    find_best(numbers, count, best, found);
    if (int64_t(found.size()) < best) return false;
    std::sort(found.begin(), found.end(), Larger{numbers});
    for (int64_t i = 0; i < best; ++i) {
        places[i] = found[i];
        values[i] = numbers[found[i]];
    }
    return true;
}

}  // namespace paceline
