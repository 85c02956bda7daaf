"""Run a benchmark: `python -m benchmarks NAME [--quick] [--out DIR]`."""

import argparse
from pathlib import Path

import jax

from . import (
    accelerator,
    categories,
    cold,
    covertype,
    deploy,
    dual,
    folds,
    gradient,
    gradient_defects,
    intervals,
    kabbara,
    many,
    many_prototypes,
    methods,
    multiclass,
    multiclass_speed,
    outliers,
    paths,
    precision,
    probabilities,
    pursuits,
    quantiles,
    races,
    reductions,
    searches,
    serving,
    sizes,
    speed,
    starts,
    streaming,
    tables,
    tabular,
    time_curves,
    wu,
    wu_usps,
)
from .report import machine_kind, write

BENCHMARKS = {
    "cold": cold.run,
    "many": many.run,
    "categories": categories.run,
    "table1": tables.table1,
    "table3": folds.table3,
    "table4": folds.table4,
    "table8": tables.table8,
    "table12": tables.table12,
    "searches": searches.run,
    "starts": starts.run,
    "gradient": gradient.run,
    "gradient_defects": gradient_defects.run,
    "precision": precision.run,
    "deploy": deploy.run,
    "serving": serving.run,
    "probabilities": probabilities.run,
    "speed": speed.run,
    "speed_multiclass": multiclass_speed.run,
    "dual": dual.run,
    "many_prototypes": many_prototypes.run,
    "preconditioners": many_prototypes.preconditioners,
    "covertype": covertype.run,
    "streaming": streaming.run,
    "figure2": sizes.run,
    "outliers": outliers.run,
    "quantiles": quantiles.run,
    "figure4_scdp": pursuits.figure4,
    "figure6_scdp": pursuits.figure6,
    "figure9_scdp": paths.figure9,
    "figure12_scdp": paths.figure12,
    "speed_pursuit": pursuits.speed,
}
# Long benchmarks, which resume from the results of an interrupted run in the folder.
RESUMED = {
    "gpu": accelerator.run,
    "methods": methods.run,
    "methods_adult": methods.run_adult,
    "races": races.run,
    "mall": reductions.run,
    "table10": multiclass.table10,
    "tabular": tabular.run,
    "table3_scdp": paths.table3,
    "table5_scdp": paths.table5,
    "figure11_scdp": time_curves.run,
    "kabbara": kabbara.run,
    "intervals": intervals.run,
    "wu": wu.run,
    "wu_usps": wu_usps.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*BENCHMARKS, *RESUMED, "all"])
    parser.add_argument("--quick", action="store_true", help="a few repetitions of the small parts")
    parser.add_argument("--out", type=Path, help="folder for the results (JSON and Markdown)")
    options = parser.parse_args()
    # Every benchmark states its dtypes, and some compare float64 with float32.
    jax.config.update("jax_enable_x64", True)
    out = options.out or Path(__file__).parent / "results" / machine_kind()
    for name in [*BENCHMARKS, *RESUMED] if options.name == "all" else [options.name]:
        if name in RESUMED:
            report = RESUMED[name](quick=options.quick, out=out)
        else:
            report = BENCHMARKS[name](quick=options.quick)
        write(out, name, report, quick=options.quick)


if __name__ == "__main__":
    main()
