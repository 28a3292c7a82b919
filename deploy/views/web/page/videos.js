'use strict';
// Videos of policies. A server sends them one by one; a report has them inside only where it was asked to.

function videos(run, live) {
  const place = el('div', { class: 'videos' }), note = el('p', { class: 'faint' }), cards = new Map(); // by file
  const addressOf = (video) => video.data || (run.videoAddress ? run.videoAddress(video.file) : null);
  const update = () => {
    const files = run.videos.map((video) => video.file), missing = run.videos.filter((video) => !addressOf(video));
    for (const video of run.videos) {
      if (!cards.has(video.file)) cards.set(video.file, videoCard(video, addressOf(video), update));
      cards.get(video.file).caption(video);
    }
    // A video that plays would stop if it moved, so it stays where it is, and until then also where it is no longer listed.
    for (const [file, card] of cards) {
      if (files.includes(file) || card.plays()) continue;
      card.element.remove();
      cards.delete(file);
    }
    const elements = files.map((file) => cards.get(file).element);
    if ([...cards.values()].some((card) => card.plays())) place.prepend(...elements.filter((element) => element.parentNode !== place));
    else place.replaceChildren(...elements);
    note.replaceChildren(...(run.videos.length ? ['One episode each of policies that were the best so far. Best and worst: by the return of this episode, among the videos that are kept. ']
      : ['There is no video. With ', el('code', {}, '--evaluator.videos 3'), ' the last three are kept, each of a policy that was the best so far. ']),
    ...(missing.some((video) => video.public) ? ['Named files are in the run’s folder; ', el('code', {}, 'headrace report --videos'), ' puts them into this page, up to 50 MB.']
      : missing.length ? ['Named files are only in the run’s folder, because pictures of this environment may not be published.'] : []));
  };
  live(update, 'videos');
  return section('videos', 'Videos', null, note, place);
}

// `stopped` is called when a video stops that has been playing
function videoCard(video, address, stopped) {
  const broken = el('p', { class: 'faint', hidden: true }, 'This video cannot be played: it has just been deleted, or the browser does not know its format.'), caption = el('figcaption', {});
  const film = address ? el('video', { src: address, controls: true, loop: true, playsinline: true, preload: 'metadata', onerror: () => { broken.hidden = false; }, onpause: stopped }) : null;
  const element = el('figure', { class: 'card video' }, film || el('p', {}, el('code', {}, 'videos/' + video.file), el('span', { class: 'faint' }, ' ' + bytes(video.bytes))), broken, caption);
  return {
    element,
    plays: () => film !== null && !film.paused,
    caption: (now) => {
      const name = sentence(now.roles.join(', ')), version = 'v' + now.policy_version;
      if (film) film.setAttribute('aria-label', name + ': ' + version + ', return ' + figure(now.return));
      caption.replaceChildren(el('b', {}, name), el('span', {}, version), el('span', {}, 'return ', el('b', {}, figure(now.return))));
    },
  };
}
