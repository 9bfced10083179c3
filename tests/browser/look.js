async (smallestPx, smallestContrast) => {
  const root = document.documentElement;
  const told = element => `${element.tagName} ${element.className}: ${element.textContent.trim().slice(0, 40)}`;

  // a mark is coloured: axes, grid and labels are grey; a legend and a colour scale say nothing of the dump
  const marks = async picture => {
    if (!picture.naturalWidth) return 0;
    const svg = new DOMParser().parseFromString(atob(picture.src.split(",")[1]), "image/svg+xml");
    svg.querySelectorAll("[id^=legend], #axes_2").forEach(other => other.remove());
    const bare = new Image();
    bare.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(svg));
    await bare.decode();
    const context = new OffscreenCanvas(600, 460).getContext("2d");
    context.drawImage(bare, 0, 0, 600, 460);
    const {data} = context.getImageData(0, 0, 600, 460);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
      const [red, green, blue] = data.subarray(at, at + 3);
      count += Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
    }
    return count;
  };

  const numbers = color => color.match(/[\d.]+/g).map(Number);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const [red, green, blue, opacity = 1] = numbers(getComputedStyle(at).backgroundColor);
      if (opacity > 0) return [red, green, blue];
    }
    return [255, 255, 255];
  };
  const luminance = color => {
    const [red, green, blue] = color.map(part => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = element => {
    const pair = [luminance(numbers(getComputedStyle(element).color).slice(0, 3)), luminance(behind(element))];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  };

  const hasText = element => [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
  const texts = [...document.querySelectorAll("body, body *")].filter(e => hasText(e) && e.getClientRects().length);
  const ends = element => Math.max(...[...element.getClientRects()].map(box => box.right));
  return {
    window: innerWidth,
    overflow: root.scrollWidth - root.clientWidth,
    wider: [...document.querySelectorAll("body *")].filter(e => e.clientWidth && e.scrollWidth > e.clientWidth).map(told),
    outside: texts.filter(e => ends(e) > root.clientWidth + 0.5).map(told),
    small: texts.filter(e => parseFloat(getComputedStyle(e).fontSize) < smallestPx).map(told),
    faint: texts.filter(e => contrast(e) < smallestContrast).map(told),
    marks: await Promise.all([...document.images].map(marks)),
    text: document.body.innerText,
  };
}
