// A table that is sorted by clicking its headers. Columns: {key, label, value(row), cell(row), title}; `number` marks numbers.
class SortedTable {
  constructor(place, caption, columns, { sort = null, current = () => false } = {}) {
    Object.assign(this, { place, caption, columns, sort, current, rows: [] });
  }

  show(rows, empty) {
    this.rows = rows;
    this.empty = empty;
    this.draw();
  }

  order(key) {
    const column = this.columns.find((c) => c.key === key);
    const first = column.number ? 'descending' : 'ascending';
    const other = first === 'ascending' ? 'descending' : 'ascending';
    this.sort = { key, way: this.sort && this.sort.key === key && this.sort.way === first ? other : first };
    this.draw();
  }

  sorted() {
    if (!this.sort) return this.rows;
    const column = this.columns.find((c) => c.key === this.sort.key);
    const sign = this.sort.way === 'ascending' ? 1 : -1;
    return [...this.rows].sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      // Unknown values come last in both directions.
      const missing = (v) => v === null || v === undefined || v === '';
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      return sign * (column.number ? x - y : String(x).localeCompare(String(y), 'en', { numeric: true }));
    });
  }

  draw() {
    const held = this.place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const scroll = [this.place.scrollLeft, this.place.scrollTop];
    const head = this.columns.map((column) => {
      const way = this.sort && this.sort.key === column.key ? this.sort.way : 'none';
      const button = make('button', { type: 'button', 'data-key': `sort ${column.key}`, title: column.title,
        on: { click: () => this.order(column.key) } }, column.label);
      return make('th', { scope: 'col', class: column.number ? 'num' : null, 'aria-sort': way }, button);
    });
    const body = this.sorted().map((row) => make('tr', { class: this.current(row) ? 'focus' : null },
      ...this.columns.map((column, i) => {
        const shown = column.cell ? column.cell(row) : column.value(row);
        const content = shown instanceof Node ? shown : String(shown ?? NONE);
        return make(i ? 'td' : 'th', { scope: i ? null : 'row', class: column.number ? 'num' : null }, content);
      })));
    const table = make('table', {}, make('caption', {}, this.caption),
      make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...body));
    this.place.replaceChildren(table, ...(body.length ? [] : [make('p', { class: 'none' }, this.empty)]));
    [this.place.scrollLeft, this.place.scrollTop] = scroll;
    if (held) [...this.place.querySelectorAll('[data-key]')].find((e) => e.dataset.key === held)?.focus({ preventScroll: true });
  }
}

function plainTable(caption, head, rows) {
  return make('table', {}, make('caption', {}, caption),
    make('thead', {}, make('tr', {}, ...head.map((text) => make('th', { scope: 'col' }, text)))),
    make('tbody', {}, ...rows.map((row) => make('tr', {},
      ...row.map((value, i) => make(i ? 'td' : 'th', { scope: i ? null : 'row' }, String(value ?? NONE)))))));
}
