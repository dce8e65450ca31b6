#include "kernels/experts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace paceline {
namespace {

constexpr int64_t kFew = 16;  // rows that one thread copies faster than several

// The largest in descending order, of equal ones the first.
std::vector<int64_t> largest_of(const std::vector<float>& x, int64_t count) {
    std::vector<int64_t> found;
    for (int64_t k = 0; k < count; ++k) {
        int64_t best = -1;
        for (int64_t e = 0; e < int64_t(x.size()); ++e) {
            const bool known = std::find(found.begin(), found.end(), e) != found.end();
            if (!known && (best < 0 || x[e] > x[best])) best = e;
        }
        found.push_back(best);
    }
    return found;
}

// Leaves the groups whose two best have the largest sums.
void keep_groups(const Router& router, std::vector<float>& places) {
    const int64_t size = int64_t(places.size()) / router.groups;
    std::vector<float> sums;
    for (auto at = places.begin(); at != places.end(); at += size) {
        const std::vector<float> own(at, at + size);
        const auto best = largest_of(own, 2);
        sums.push_back(own[best[0]] + own[best[1]]);
    }
    const auto kept = largest_of(sums, router.groups_used);
    for (int64_t g = 0; g < router.groups; ++g) {
        if (std::find(kept.begin(), kept.end(), g) != kept.end()) continue;
        std::fill_n(places.begin() + g * size, size, -std::numeric_limits<float>::infinity());
    }
}

void largest_scores(const Router& router, int64_t experts, const float* scores, float* out) {
    float most = scores[0], all = 0.0f, taken = 0.0f;
    for (int64_t e = 1; e < experts; ++e) most = std::max(most, scores[e]);
    std::vector<float> parts(experts);
    for (int64_t e = 0; e < experts; ++e) {
        parts[e] = router.sigmoid ? sigmoid(paceline::all(scores[e]))[0] : exponential(scores[e] - most);
        all += parts[e];
    }
    std::vector<float> places = parts;
    for (int64_t e = 0; router.offset && e < experts; ++e) places[e] += router.offset[e];
    if (router.groups_used < router.groups) keep_groups(router, places);
    const auto used = largest_of(places, router.used);
    for (int64_t e : used) taken += parts[e];
    const float whole = router.sum_to_one ? taken : router.sigmoid ? 1.0f : all;
    for (int64_t e : used) out[e] = parts[e] / whole * router.factor;
    if (!std::isfinite(all)) out[used[0]] = NAN;
}

void scores_above_zero(const Router& router, int64_t experts, const float* scores, float* out) {
    float square = 0.0f;
    for (int64_t e = 0; e < experts; ++e) {
        out[e] = scores[e] <= 0 ? 0.0f : scores[e];
        square += out[e] * out[e];
    }
    const float factor = 1.0f / std::sqrt(square / float(experts) + router.eps);
    for (int64_t e = 0; e < experts; ++e) {
        if (out[e] != 0) out[e] = out[e] * factor * router.norm[e];
    }
}

// Rows one behind another: as they are if they lie so, else copied.
Rows<const float> gathered(Rows<const float> x, const std::vector<int64_t>& which, int64_t width,
                           std::vector<float>& room) {
    const int64_t count = int64_t(which.size());
    if (which.back() - which[0] + 1 == count) return {x[which[0]], x.stride};
    room.resize(count * width);
    for (int64_t i = 0; i < count; ++i) std::copy_n(x[which[i]], width, room.data() + i * width);
    return {room.data(), width};
}

}  // namespace

void route(const Router& router, int64_t rows, int64_t experts, Rows<const float> scores,
           Rows<float> out) {
    each(rows, rows > kFew, [=, router = &router](int64_t r) {
        std::fill_n(out[r], experts, 0.0f);
        (router->used ? largest_scores : scores_above_zero)(*router, experts, scores[r], out[r]);
    });
}

void mix(const Experts& of, int64_t rows, Rows<const float> x, Rows<const float> weights,
         Rows<const float> more, Rows<float> out, Scratch& scratch) {
    const int64_t width = of.up[0].inputs;
    for (int64_t r = 0; r < rows; ++r) {
        if (more) std::copy_n(more[r], width, out[r]);
        else std::fill_n(out[r], width, 0.0f);
    }
    std::vector<int64_t> which;
    for (size_t e = 0; e < of.up.size(); ++e) {
        which.clear();
        for (int64_t r = 0; r < rows; ++r) {
            if (of.every || weights[r][e] != 0) which.push_back(r);
        }
        if (which.empty()) continue;
        const int64_t count = int64_t(which.size()), inner = of.up[e].outputs;
        const Rows<const float> own = gathered(x, which, width, scratch.taken);
        scratch.inner.resize(count * inner);
        scratch.made.resize(count * width);
        const Rows<float> hidden{scratch.inner.data(), inner}, made{scratch.made.data(), width};
        MatmulOp op{{of.up[e]}, 1, Gate::kNone, 1.0f, nullptr, 0.0f};
        if (!of.gate.empty()) op = {{of.gate[e], of.up[e]}, 2, of.activation, 1.0f, nullptr, 0.0f};
        matmul(op, count, {own, nullptr}, {nullptr, 0}, {hidden, nullptr}, scratch);
        for (int64_t i = 0; of.gate.empty() && i < count * inner; i += kLanes) {
            const Vec value = load(hidden.at + i);
            store(hidden.at + i, active(of.activation, value));
        }
        const MatmulOp back{{of.down[e]}, 1, Gate::kNone, 1.0f, nullptr, 0.0f};
        matmul(back, count, {{hidden.at, inner}, nullptr}, {nullptr, 0}, {made, nullptr}, scratch);
        each(count, count > kFew, [=, which = which.data()](int64_t i) {
            const int64_t r = which[i];
            const float weight = weights[r][e];
            for (int64_t d = 0; weight != 0 && d < width; d += kLanes) {
                store(out[r] + d, fma(load(made[i] + d), weight, load(out[r] + d)));
            }
        });
    }
}

}  // namespace paceline
