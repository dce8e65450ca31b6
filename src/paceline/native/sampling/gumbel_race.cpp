#include "sampling/gumbel_race.hpp"

#include "sampling/block_race.hpp"
#include "sampling/truncation.hpp"

namespace paceline {

template <class Number>
int64_t gumbel_argmax(const Number* logits, int64_t size, const Choice& choice, const NoiseKey& key) {
    static thread_local BlockRace<Number> race;
    if (!race.begin({logits, size}, choice.temperature, key)) return kUndecided;
    Kept<Number> kept{};
    kept.lowest = choice.log_min_p;
    if (choice.top_k > 0 && choice.top_k < size) kept.floor = race.largest(choice.top_k);
    while (true) {
        const int64_t token = race.best(kept);
        if (token == kUndecided || choice.top_p >= 1) return token;
        const Place place = in_nucleus(race.row(), race.scale(), kept.floor, token, choice.top_p);
        if (place != Place::outside) return place == Place::inside ? token : kUndecided;
        kept.above = logits[token];  // tokens of no higher logit are outside too
    }
}

template int64_t gumbel_argmax(const float*, int64_t, const Choice&, const NoiseKey&);
template int64_t gumbel_argmax(const double*, int64_t, const Choice&, const NoiseKey&);

}  // namespace paceline
