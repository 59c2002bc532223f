// Start, user interaction, and updates from the server.
function draw() {
  colours.clear();
  drawOverview();
  if (runs().length > 1) drawRuns();
  drawSide();
  drawLegends();
  drawTraining();
  drawTradeoff();
  drawLayers();
  drawOneLayer();
  drawEngine();
  drawRecipe();
  const shown = [...document.querySelectorAll('main > section')].filter((section) => !section.hidden);
  const names = { overview: 'Overview', side: 'Side by side', tradeoff: 'Trade-off', layer: 'One layer', engine: 'Engine', recipe: 'Recipe' };
  const links = shown.map((s) => make('li', {}, make('a', { href: `#${s.id}` }, names[s.id] || s.querySelector('h2').textContent)));
  if (byId('nav').children.length !== links.length) byId('nav').replaceChildren(...links);
}

function setFocus(id) {
  state.focus = id;
  draw();
}

function listen() {
  const place = byId('live');
  const say = (kind, text) => { place.dataset.state = kind; if (place.textContent !== text) place.textContent = text; };
  place.hidden = false;
  say('on', 'Live');
  const source = new EventSource('events');
  source.onopen = () => say('on', 'Live');
  source.onerror = () => say('lost', 'Connection lost');
  source.addEventListener('problem', (event) => { place.title = event.data; say('lost', 'Cannot read the run'); });
  source.onmessage = (event) => {
    state.data = JSON.parse(event.data);
    draw();
    const done = runs().every((run) => run.result);
    say(done ? 'done' : 'on', `${done ? 'Finished' : 'Live'} · ${new Date(state.data.made).toLocaleTimeString()}`);
  };
}

// Save the page with its newest data as one file.
function share() {
  const page = document.documentElement.cloneNode(true);
  page.dataset.live = 'no';
  page.querySelector('#data').textContent = JSON.stringify(state.data).replaceAll('<', '\\u003c').replaceAll('>', '\\u003e').replaceAll('&', '\\u0026');
  page.querySelectorAll('figure').forEach((figure) => figure.replaceChildren()); // drawn again when the file is opened
  const file = new Blob(['<!doctype html>\n', page.outerHTML], { type: 'text/html' });
  const link = make('a', { href: URL.createObjectURL(file), download: `rankprune-${focused().name.replace(/[^\w.-]+/g, '-')}.html` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function start() {
  state.data = JSON.parse(byId('data').textContent);
  const best = [...runs()].sort((a, b) => (b.result?.accuracy_last ?? -1) - (a.result?.accuracy_last ?? -1));
  // The first focus: live, the unfinished run; otherwise the best pruned run.
  const live = document.documentElement.dataset.live === 'yes';
  state.focus = ((live && runs().find((r) => !r.result)) || best.find((r) => r.method !== 'dense') || best[0]).id;
  byId('share').addEventListener('click', share);
  byId('pick').addEventListener('change', (event) => setFocus(event.target.value));
  byId('pick-layer').addEventListener('change', (event) => { state.layer = event.target.value; drawOneLayer(); drawLayers(); });
  let typing = 0;
  byId('filter').addEventListener('input', (event) => { // update the table immediately, the charts when typing pauses
    state.filter = event.target.value.trim();
    drawRuns();
    clearTimeout(typing);
    typing = setTimeout(draw, 150);
  });
  startTheme(draw);
  draw();
  if (live) listen();
}

start();
