"use strict";
// Tables sort by the value behind the text; what was not measured stays at the end.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((one, other) => compare(value(one, column), value(other, column), descending));
      table.tBodies[0].append(...rows);
    });
  });
}

function value(row, column) {
  return row.cells[column].dataset.value;
}

function compare(one, other, descending) {
  const [first, second] = [Number(one === "inf" ? "Infinity" : one), Number(other === "inf" ? "Infinity" : other)];
  if (Number.isNaN(first) || Number.isNaN(second)) {
    return descending ? other.localeCompare(one) : one.localeCompare(other);
  }
  if (first === second) return 0;
  if (first === Infinity) return 1;
  if (second === Infinity) return -1;
  return descending ? second - first : first - second;
}

// Figures fill the paper, not the window, when printed.
addEventListener("beforeprint", () => {
  for (const figure of document.querySelectorAll(".js-plotly-plot")) Plotly.Plots.resize(figure);
});
