"""Methods that no default uses, as a plugin: pyproject.toml names them as any package would.

`METHODS` goes to the registry, networks and commands are entry points of their own. Nothing else
in paceline imports this package.
"""

from __future__ import annotations

from paceline.registry.table import Index

METHODS: Index = {
    "drafter": {
        "cacheback": "paceline.zoo.cacheback:Cacheback",
        "suffix-tree": "paceline.zoo.suffix_tree:SuffixTrees",
        "aded-mcts": "paceline.zoo.trigram_search:TrigramSearch",
        "clover": "paceline.zoo.networks.clover:CloverDrafter",
        "chimera": "paceline.zoo.networks.chimera:ChimeraDrafter",
        "falcon": "paceline.zoo.networks.falcon:FalconDrafter",
        "ctc": "paceline.zoo.networks.ctc:CTCDrafter",
        "specformer": "paceline.zoo.networks.specformer:SpecFormerDrafter",
        "s2d": "paceline.zoo.layers.sorted_exits:SortedExits",
        "longspec": "paceline.zoo.networks.longspec:LongSpecDrafter",
        "hidden-transfer": "paceline.zoo.layers.hidden_transfer:HiddenTransferDrafter",
        "ppd": "paceline.zoo.ppd.drafter:PPD",
        "cascade": "paceline.zoo.cascade:Cascade",
        "deer": "paceline.zoo.denoised:Deer",
        "diffuspec": "paceline.zoo.denoised:DiffuSpec",
        "jacobi": "paceline.zoo.jacobi:Jacobi",
        "swift": "paceline.zoo.layers.swift:Swift",
        "del": "paceline.zoo.layers.dynamic_exit:DynamicExit",
        "double-exit": "paceline.zoo.layers.double_exit:DoubleExit",
        "imitation": "paceline.zoo.layers.imitation:ImitationDrafter",
        "pearl": "paceline.zoo.schedules.pearl:Pearl",
        "mirror-sd": "paceline.zoo.schedules.mirror:Mirror",
        "easyspec": "paceline.zoo.schedules.easyspec:EasySpec",
        "dovetail": "paceline.zoo.schedules.dovetail:Dovetail",
    },
    "verifier": {
        "typical": "paceline.zoo.typical:Typical",
        "top-gap": "paceline.zoo.top_gap:TopGap",
        "fly": "paceline.zoo.fly:Fly",
        "judge": "paceline.zoo.heads.verifiers:Judge",
        "pivot": "paceline.zoo.heads.verifiers:Pivot",
        "reflective": "paceline.zoo.reflective:Reflective",
        "relaxed": "paceline.zoo.relaxed:Relaxed",
    },
    "controller": {
        "confidence": "paceline.zoo.confidence:Confidence",
        "adaptive": "paceline.zoo.adaptive:Adaptive",
        "bandit": "paceline.zoo.bandit:Bandit",
    },
    "decoder": {
        "first-finish": "paceline.zoo.first_finish:first_finish",
        "superposed": "paceline.zoo.superposed:superpose",
    },
}
