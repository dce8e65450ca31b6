#include "kernels/visible_keys.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace paceline {

void VisibleKeys::find(int ratio, const Plan& given, int64_t longest) {
    plan = given;
    groups.clear();
    lasts.clear();
    chunks = 0;
    const int most = std::max(1, kQueryRows / ratio);
    const auto table = [&](int r) { return row_of(plan, r).table; };
    int begin = 0, end = 0, parts = 0, part = 0;  // of a sequence: rows, and groups of equal size
    for (int r = 0; r < plan.count; ++r) {
        const Row at = row_of(plan, r);
        if (at.position >= longest) {
            throw std::out_of_range("a row stands behind the longest context of " +
                                    std::to_string(longest) + " tokens");
        }
        if (r == end) {
            while (end < plan.count && table(end) == at.table) ++end;
            begin = r;
            parts = (end - begin + most - 1) / most;
            part = 0;
        }
        if (r == begin + int64_t{part} * (end - begin) / parts) {
            groups.push_back({r, 0, 0, 0, at.run, {0, 0}});
            ++part;
        }
        Group& group = groups.back();
        ++group.count;
        group.longest = std::max(group.longest, at.total);
        group.longest_run = std::max(group.longest_run, at.run);
        group.shortest_run = std::min(group.shortest_run, at.run);
        auto& [first, behind] = group.single_blocks;
        for (int i = 0; i < at.total - at.run; ++i) {
            const int block = plan.singles[at.singles + i] / kBlock;
            first = first == behind ? block : std::min(first, block);
            behind = std::max(behind, block + 1);
        }
        if (r + 1 == end) {
            lasts.push_back(group);
            lasts.back().first = r;
            lasts.back().count = 1;
            lasts.back().longest = at.total;
            lasts.back().longest_run = lasts.back().shortest_run = at.run;
        }
    }
    for (const Group& group : groups) chunks = std::max(chunks, group.chunks());
}

}  // namespace paceline
