// Reads CoverageJSON with covjson-reader, and prints what it found: node read_coverage.js FILE...
"use strict";

const { readFileSync } = require("fs");
const reader = require("covjson-reader");

async function main() {
  const found = [];
  for (const path of process.argv.slice(2)) {
    const coverage = await reader.read(JSON.parse(readFileSync(path, "utf8")));
    const domain = await coverage.loadDomain();
    const ranges = await coverage.loadRanges([...coverage.parameters.keys()]);
    const values = {};
    for (const [name, range] of ranges) {
      const names = [...range.shape.keys()].filter((axis) => range.shape.get(axis) > 1);
      const all = [];
      const visit = (at, rest) => {
        if (!rest.length) return all.push(range.get(at));
        for (let i = 0; i < range.shape.get(rest[0]); i++) visit({ ...at, [rest[0]]: i }, rest.slice(1));
      };
      visit({}, names);
      values[name] = all;
    }
    found.push({
      type: coverage.domainType,
      axes: [...domain.axes.keys()].sort(),
      unit: coverage.parameters.get(coverage.parameters.keys().next().value).unit,
      values,
    });
  }
  console.log(JSON.stringify(found));
}

main();
