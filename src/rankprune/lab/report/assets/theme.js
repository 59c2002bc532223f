// Light, dark, or the system's theme; charts read their colours from the style sheet.
const THEMES = ['auto', 'light', 'dark'];
const system = window.matchMedia('(prefers-color-scheme: dark)');

function remembered() {
  try { return localStorage.getItem('rankprune-theme') || 'auto'; } catch { return 'auto'; } // a local file may have no storage
}

function setTheme(name) {
  if (name === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const button = byId('theme');
  button.textContent = { auto: 'Auto', light: 'Light', dark: 'Dark' }[name];
  button.setAttribute('aria-label', `Colours: ${name}. Change`);
  button.dataset.theme = name;
  try { localStorage.setItem('rankprune-theme', name); } catch { /* the choice is not remembered */ }
}

// The resolved value of a colour of the style sheet, looked up once per drawing.
const colours = new Map();
function colour(name) {
  if (name.startsWith('#')) return name; // a method's own
  if (!colours.has(name)) colours.set(name, resolved(name));
  return colours.get(name);
}

function resolved(name) {
  const probe = make('span');
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function startTheme(redraw) {
  setTheme(THEMES.includes(remembered()) ? remembered() : 'auto');
  byId('theme').addEventListener('click', () => {
    setTheme(THEMES[(THEMES.indexOf(byId('theme').dataset.theme) + 1) % THEMES.length]);
    redraw();
  });
  system.addEventListener('change', redraw);
}
