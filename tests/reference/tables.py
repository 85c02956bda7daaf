"""Encoding of a CSV file by loops over its cells, with the standard library only."""

import csv
import statistics


def encode_csv(train_path, path, target, numeric, missing=("",), impute=False):
    """Return rows of numbers: columns in `numeric` as they are, the others as indicators.

    Categories, and the medians that replace missing numbers, come from `train_path`. With `impute`,
    a categorical column with missing training cells gets one more indicator, of missing cells.
    """
    with open(train_path, encoding="utf-8", newline="") as file:
        train = list(csv.DictReader(file))
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    encoded = [[] for _ in rows]
    for name in train[0]:
        if name == target:
            continue
        present = [row[name] for row in train if row[name] not in missing]
        if name in numeric:
            median = statistics.median(float(value) for value in present)
            for row, cells in zip(rows, encoded, strict=True):
                cells.append(median if row[name] in missing else float(row[name]))
            continue
        categories = sorted(set(present))
        has_missing_column = impute and len(present) < len(train)
        for row, cells in zip(rows, encoded, strict=True):
            cells.extend(1.0 if row[name] == category else 0.0 for category in categories)
            if has_missing_column:
                cells.append(1.0 if row[name] in missing else 0.0)
    return encoded
