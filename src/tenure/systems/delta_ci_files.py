"""The repository of `tenure up delta-ci`: two packages, a page of documentation, and a pipeline."""

from __future__ import annotations

PIPELINE = """\
projects:
  packages/prices: []
  packages/shop: [packages/prices]
jobs:
  test-prices:
    project: packages/prices
    inputs: [packages/prices/**, tools/check.sh]
    run: sh tools/check.sh packages/prices
  test-shop:
    project: packages/shop
    needs: [test-prices]
    run: |
      sh tools/check.sh packages/shop
      mkdir -p dist
      cat packages/prices/*.txt packages/shop/*.txt > dist/shop.txt
    reports: [packages/shop/report.xml]
    artifacts: [{name: shop, paths: [dist/**]}]
  install:
    paths: [packages/shop/**]
    retry: {max: 2, backoff: [1s]}
    run: |
      if [ "$TENURE_ATTEMPT" = 1 ]; then
        echo "fatal: unable to access 'https://example.invalid/': Could not resolve host: example.invalid" >&2
        exit 128
      fi
      echo "installed at attempt $TENURE_ATTEMPT"
  docs:
    paths: [docs/**]
    run: cat docs/index.md
"""

SLOW_JOB = """\
  slow:
    run: while true; do sleep 1; done
"""

REPORT = """\
<testsuite name="shop" tests="2" failures="0"><testcase classname="shop" name="adds"/>\
<testcase classname="shop" name="removes"/></testsuite>
"""

FIRST: dict[str, str] = {
    ".tenure/ci.yaml": PIPELINE,
    "tools/check.sh": 'test -d "$1" && ls "$1" && echo "$1 is fine"\n',
    "packages/prices/prices.txt": "tea 3\n",
    "packages/shop/shop.txt": "cart\n",
    "packages/shop/report.xml": REPORT,
    "docs/index.md": "# Shop\n",
}
SECOND: dict[str, str] = {"packages/shop/shop.txt": "cart\ncheckout\n"}
"""Touches one package that nothing depends on."""
THIRD: dict[str, str] = {"docs/index.md": "# Shop\n\nBuy tea.\n"}
"""Touches only the documentation."""
