// Formatting of numbers, and DOM elements. Text from run folders is inserted as text, never as markup.
const NONE = '–';
const known = (x) => typeof x === 'number' && Number.isFinite(x);
const percent = (x, digits = 2) => (known(x) ? `${(100 * x).toFixed(digits)} %` : NONE);
const count = (x) => (known(x) ? x.toLocaleString('en') : NONE);
const fixed = (x, digits) => (known(x) ? x.toFixed(digits) : NONE);

// A sparsity with enough digits to distinguish it from 100 %.
function sparsityText(x) {
  if (!known(x)) return NONE;
  const text = (100 * x).toFixed(x > 0.999 ? 3 : 2);
  return `${text.replace(/\.?0+$/, '')} %`;
}

function short(x, unit = '') {
  if (!known(x)) return NONE;
  const names = ['', 'k', 'M', 'G', 'T', 'P'];
  let i = 0;
  while (Math.abs(x) >= 1000 && i < names.length - 1) { x /= 1000; i += 1; }
  const gap = names[i] || unit ? ' ' : '';
  return `${Number(x.toPrecision(3))}${gap}${names[i]}${unit}`;
}

function times(dense, sparse) {
  if (!known(dense) || !known(sparse) || !sparse) return NONE;
  const ratio = dense / sparse;
  return `${ratio >= 10 ? ratio.toFixed(0) : ratio.toFixed(1)}×`;
}

const milliseconds = (s) => (known(s) ? `${Number((1e3 * s).toPrecision(3))} ms` : NONE);

function duration(s) {
  if (!known(s)) return NONE;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  return s < 3600 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`;
}

const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === 'on') for (const [event, f] of Object.entries(value)) element.addEventListener(event, f);
    else element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const meter = (share) => {
  const inner = make('i');
  inner.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return make('span', { class: 'meter', 'aria-hidden': 'true' }, inner);
};
